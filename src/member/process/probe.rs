//! Whether etcd answers: a look at its health and metrics port, which is plain HTTP inside this host or pod.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quorate_core::joiner;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long one look may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// More than etcd's metrics have.
const LIMIT: u64 = 4 * 1024 * 1024;

/// The body of a good answer.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let look = async {
        let mut stream = TcpStream::connect(address).await?;
        // HTTP/1.0: the answer ends with the connection and comes in one piece.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LIMIT).read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = tokio::time::timeout(DEADLINE, look).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned())),
    }
}

/// What etcd says of itself in its metrics; enough to see whether a look at its log is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Committed index.
    pub committed: u64,
    /// Leader changes since its start.
    pub leader_changes: u64,
}

/// Reads the progress out of `/metrics`.
pub fn progress(metrics: &str) -> Option<Progress> {
    Some(Progress {
        committed: sum(metrics, "etcd_server_proposals_committed_total")?,
        leader_changes: sum(metrics, "etcd_server_leader_changes_seen_total")?,
    })
}

/// What `/metrics` says of a joiner: how far its data are. None if nothing is said of them yet.
pub fn joining(metrics: &str) -> Option<joiner::Look> {
    Some(joiner::Look {
        open: false,
        // One value for each sender; none before the first snapshot.
        received: sum(metrics, "etcd_network_snapshot_receive_success").unwrap_or(0),
        receiving: sum(metrics, "etcd_network_snapshot_receive_inflights_total").unwrap_or(0),
        applied: sum(metrics, "etcd_server_proposals_applied_total")?,
    })
}

/// The sum of all values of one metric; none if there is none.
fn sum(metrics: &str, name: &str) -> Option<u64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let labelled = rest.starts_with('{').then(|| rest.split_once('}').map(|(_, value)| value)).flatten();
        let value: f64 = labelled.unwrap_or(rest).strip_prefix(' ')?.trim().parse().ok()?;
        // Only compared with an earlier one, so that rounding above 2^53 does no harm.
        Some(format!("{value:.0}").parse().unwrap_or(0))
    };
    metrics.lines().filter_map(value).reduce(|a: u64, b| a.saturating_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        let text = "# HELP etcd_server_proposals_committed_total x\netcd_server_proposals_committed_total 1.2e+06\n\
                    etcd_server_leader_changes_seen_total 3\n";
        assert_eq!(progress(text), Some(Progress { committed: 1_200_000, leader_changes: 3 }));
        assert_eq!(progress("nothing"), None);
    }

    #[test]
    fn what_a_joiner_has_is_read() {
        let before = "etcd_server_proposals_applied_total 0\n";
        assert_eq!(joining(before), Some(joiner::Look::default()));
        let after = "# TYPE etcd_network_snapshot_receive_success counter\n\
                     etcd_network_snapshot_receive_success{From=\"1b17b2231b9e9b28\"} 1\n\
                     etcd_network_snapshot_receive_success{From=\"9e083f8b38463862\"} 2\n\
                     etcd_network_snapshot_receive_inflights_total{From=\"1b17b2231b9e9b28\"} 0\n\
                     etcd_server_proposals_applied_total 1.2e+06\n";
        let look = joiner::Look { open: false, received: 3, receiving: 0, applied: 1_200_000 };
        assert_eq!(joining(after), Some(look));
        assert_eq!(joining("nothing"), None);
    }

    #[tokio::test]
    async fn only_a_good_answer_counts() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |text: &'static str| async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
        };
        let (body, ()) = tokio::join!(get(address, "/livez"), answer("HTTP/1.0 200 OK\r\nA: b\r\n\r\nok"));
        assert_eq!(body.unwrap(), "ok");
        let (body, ()) = tokio::join!(get(address, "/livez"), answer("HTTP/1.0 503 No\r\n\r\nbad"));
        assert_eq!(body.unwrap_err().to_string(), "HTTP/1.0 503 No");
        let (body, ()) = tokio::join!(get(address, "/livez"), answer("junk"));
        assert_eq!(body.unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(listener);
        assert!(get(address, "/livez").await.is_err());
    }
}
