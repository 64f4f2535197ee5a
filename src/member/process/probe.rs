//! Whether etcd answers: a look at its health and metrics port, which is plain HTTP inside this host or pod.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

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
    let value = |name: &str| {
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .and_then(|text| text.trim().parse::<f64>().ok())
            // Only compared with an earlier one, so that rounding above 2^53 does no harm.
            .map(|value| format!("{value:.0}").parse().unwrap_or(0))
    };
    Some(Progress {
        committed: value("etcd_server_proposals_committed_total")?,
        leader_changes: value("etcd_server_leader_changes_seen_total")?,
    })
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
