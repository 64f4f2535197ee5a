//! Clients that go where the agents say, as those of a user would: `endpoints` in the status of the site that executes.
//! Who is about to leave comes last there, so a client is gone before its member is.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::join_all;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;

use super::mesh::{Mesh, Site};
use super::watch::{Watch, endpoints};
use super::writer::Writer;

/// Nobody is sent to an endpoint that does not answer within this.
const ANSWERS: Duration = Duration::from_millis(500);

/// Leads a writer until it is dropped.
#[derive(Debug)]
pub struct Guide {
    drain: Drain,
}

impl Guide {
    /// Leads `writer`.
    pub fn start(mesh: &Mesh, watch: &Watch, writer: &Writer) -> Self {
        let drain = Drain::new();
        drain.spawn_until(lead(mesh.sites.clone(), watch.clone(), writer.clone()));
        Self { drain }
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        self.drain.start();
    }
}

/// A client of each of these endpoints.
pub async fn clients(sites: &[Site], urls: &[String]) -> Result<Vec<EtcdClient>> {
    let mut clients = Vec::new();
    for url in urls {
        let host = url.strip_prefix("https://").and_then(|rest| rest.rsplit_once(':')).map(|(host, _)| host);
        let site = sites.iter().find(|site| Some(site.address.to_string().as_str()) == host);
        let site = site.with_context(|| format!("{url} is an endpoint of no site"))?;
        clients.push(EtcdClient::connect(url, &site.user()?).await?);
    }
    Ok(clients)
}

async fn lead(sites: Vec<Site>, watch: Watch, writer: Writer) {
    let mut known: BTreeMap<String, EtcdClient> = BTreeMap::new();
    let mut reached: Vec<String> = Vec::new();
    loop {
        watch.looked().await;
        let Some(told) = endpoints(&watch.statuses()).filter(|told| *told != reached) else { continue };
        for url in &told {
            if !known.contains_key(url)
                && let Ok(new) = clients(&sites, std::slice::from_ref(url)).await
            {
                known.extend(new.into_iter().map(|client| (url.clone(), client)));
            }
        }
        let look = |url: String| {
            let client = known.get(&url).cloned();
            async move {
                let client = client?;
                client.with_deadline(ANSWERS).status().await.ok()?;
                Some((url, client))
            }
        };
        let answered: Vec<_> = join_all(told.into_iter().map(look)).await.into_iter().flatten().collect();
        let (urls, clients): (Vec<String>, Vec<EtcdClient>) = answered.into_iter().unzip();
        if !urls.is_empty() && urls != reached {
            reached = urls;
            writer.go_to(clients);
        }
    }
}
