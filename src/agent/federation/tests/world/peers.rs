//! The links between agents: what one asks the task of the other, unless they are cut.

use super::*;

#[derive(Debug)]
pub(in crate::federation::tests) struct FakePeers {
    pub(super) me: SiteName,
    pub(super) net: Arc<Net>,
    pub(super) drain: Drain,
    pub(super) clock: Clock,
    /// The version that each peer has, with the number and the time of its arrival.
    pub(super) told: Mutex<BTreeMap<SiteName, (u64, u64, u64)>>,
    /// What each site was told that was taken out.
    pub(super) parted: Mutex<BTreeMap<SiteName, Retired>>,
}

impl FakePeers {
    async fn ask(&self, site: &SiteName, question: Question) -> Option<Reply> {
        let Some(handle) = self.net.handle(&self.me, site) else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return None;
        };
        handle.ask(&self.me, question).await
    }
}

impl Peers for FakePeers {
    fn has(&self, _: &SiteName) -> bool {
        true
    }

    async fn record(&self, site: &SiteName, _: Sender) -> Option<RecordSummary> {
        match self.ask(site, Question::Record).await? {
            Reply::Record(summary) => Some(*summary),
            _ => None,
        }
    }

    async fn whole_record(&self, site: &SiteName, _: Sender) -> Option<Record> {
        match self.ask(site, Question::WholeRecord).await? {
            Reply::WholeRecord(record) => record.map(|record| *record),
            _ => None,
        }
    }

    async fn spec(&self, site: &SiteName, _: Sender, digest: Digest) -> Option<Spec> {
        match self.ask(site, Question::Spec(digest)).await? {
            Reply::Spec(spec) => spec.map(|spec| spec.as_ref().clone()),
            _ => None,
        }
    }

    async fn vote(&self, site: &SiteName, _: Sender, ballot: &Arc<Ballot>) -> Result<RecordSummary, Reason> {
        match self.ask(site, Question::Vote(Arc::clone(ballot))).await {
            Some(Reply::Vote(vote)) => *vote,
            _ => Err(Code::PeerUnreachable.into()),
        }
    }

    async fn propose(&self, site: &SiteName, _: Sender, intent: &Arc<Intent>) -> Result<bool, Reason> {
        match self.ask(site, Question::Propose(Arc::clone(intent))).await {
            Some(Reply::Ack(ack)) => ack,
            _ => Err(Code::PeerUnreachable.into()),
        }
    }

    async fn resolve(&self, site: &SiteName, _: Sender, resolution: &Arc<Resolution>) -> bool {
        matches!(self.ask(site, Question::Resolve(Arc::clone(resolution))).await, Some(Reply::Resolved(true)))
    }

    fn round_trip(&self, site: &SiteName) -> Option<Distance> {
        let rtt_us = self.net.distance_us.load(Ordering::Relaxed);
        self.net.handle(&self.me, site).map(|_| Distance { rtt_us, least_us: rtt_us })
    }

    async fn drain(&self, site: &SiteName, _: Sender, request: DrainRequest) -> Result<DrainGrant, Reason> {
        match self.ask(site, Question::Drain(request)).await {
            Some(Reply::Drain(answer)) => answer,
            _ => Err(Code::PeerUnreachable.into()),
        }
    }

    async fn name_taken(&self, site: &SiteName, _: Sender) -> Option<bool> {
        match self.ask(site, Question::NameTaken).await? {
            Reply::NameTaken(taken) => Some(taken),
            _ => None,
        }
    }

    fn mesh(&self) -> Vec<SiteName> {
        let handles = self.net.handles.lock().unwrap();
        handles.keys().filter(|site| **site != self.me).cloned().collect()
    }

    async fn certify(
        &self,
        site: &SiteName,
        _: Sender,
        request: &CertificateRequest,
    ) -> Result<Option<String>, Reason> {
        match self.ask(site, Question::Certify(Box::new(request.clone()))).await {
            Some(Reply::Certified(chain)) => chain,
            _ => Err(Code::PeerUnreachable.into()),
        }
    }

    fn publish(&self, publication: Publication) {
        let now = self.clock.now_ms();
        for Parting { site, retired: told } in publication.partings {
            let Some(handle) = self.net.handle(&self.me, &site) else { continue };
            let mut parted = self.parted.lock().unwrap();
            if parted.get(&site) != Some(&told) {
                parted.insert(site, told.clone());
                let me = self.me.clone();
                self.drain.spawn(async move { handle.tell(Message::Retired { site: me, told }).await });
            }
        }
        for to in publication.sites {
            let Some(handle) = self.net.handle(&self.me, &to) else { continue };
            let mut told = self.told.lock().unwrap();
            let known = told.get(&to).copied().filter(|(version, ..)| *version == publication.version);
            // As on the real stream: what is new at once, what is still true every two seconds.
            if known.is_some_and(|(.., at)| now < at + 1_400) {
                continue;
            }
            let next = || self.net.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
            let arrival = known.map_or_else(next, |(_, arrival, _)| arrival);
            told.insert(to, (publication.version, arrival, now));
            drop(told);
            let age_ms = now.saturating_sub(publication.true_at);
            let (site, observation) = (self.me.clone(), Arc::clone(&publication.observation));
            let message = if known.is_some() {
                Message::Fresh { site, arrival, age_ms }
            } else {
                Message::View { site, observation, age_ms, arrival }
            };
            self.drain.spawn(async move { handle.tell(message).await });
        }
    }
}
