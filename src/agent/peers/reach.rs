//! Whether an address can be reached from each site: asked before an etcd that quorate did not create is taken over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::config::Cidr;
use quorate_api::peer::ReachRequest;
use quorate_api::peer::peer_client::PeerClient;
use quorate_core::id::SiteName;

use super::Mesh;
use crate::ports::Sender;

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(3);

/// Dials an address (host:port); only where peers may be, so that nobody uses this agent to look around.
pub(super) async fn dial(allowed: &[Cidr], address: &str) -> Result<(), String> {
    let attempt = async {
        let found = tokio::net::lookup_host(address).await.map_err(|error| error.to_string())?;
        let mut last = "the name has no address".to_owned();
        for candidate in found {
            if !allowed.is_empty() && !allowed.iter().any(|cidr| cidr.contains(candidate.ip())) {
                last = format!("{} is outside peerCIDRs", candidate.ip());
                continue;
            }
            match tokio::net::TcpStream::connect(candidate).await {
                Ok(_) => return Ok(()),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    };
    tokio::time::timeout(LIMIT, attempt)
        .await
        .unwrap_or_else(|_| Err(format!("no connection within {LIMIT:?}")))
}

impl Mesh {
    /// What is in the way from this site and from each peer to an address; none = nothing is.
    pub async fn reach(self: &Arc<Self>, address: &str) -> BTreeMap<SiteName, Option<String>> {
        let ask = |(site, channel): (&SiteName, &tonic::transport::Channel)| {
            let (site, channel) = (site.clone(), channel.clone());
            async move {
                let envelope = Some(self.envelope(None, Sender::default()));
                let mut request = tonic::Request::new(ReachRequest { envelope, address: address.to_owned() });
                request.set_timeout(super::CALL);
                let answer = PeerClient::new(channel).reach(request).await;
                let error = match answer {
                    Ok(reply) => reply.into_inner().error,
                    Err(status) => format!("the agent does not answer: {}", status.message()),
                };
                (site, Some(error).filter(|error| !error.is_empty()))
            }
        };
        let asked = futures::future::join_all(self.channels.iter().map(ask));
        let (others, own) = futures::future::join(asked, dial(&self.from, address)).await;
        others.into_iter().chain([(self.site.clone(), own.err())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_port_is_reached_and_only_where_peers_may_be() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(dial(&[], &address).await, Ok(()));
        let elsewhere: Cidr = "10.0.0.0/8".parse().unwrap();
        let refused = dial(&[elsewhere], &address).await.unwrap_err();
        assert!(refused.contains("outside peerCIDRs"), "{refused}");
        drop(listener);
        assert!(dial(&[], &address).await.is_err());
        assert!(dial(&[], "no-port").await.is_err());
    }
}
