//! Requests of etcd's API that the client crate cannot send: its `member_list` always asks for the local answer, which may
//! be stale, and it does not know `AuthStatus`. The field numbers are etcd's (`rpc.proto`).

use etcd_client::proto::PbMemberListResponse;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct MemberListRequest {
    #[prost(bool, tag = "1")]
    linearizable: bool,
}

pub(super) async fn member_list(
    channel: Channel,
    linearizable: bool,
) -> Result<PbMemberListResponse, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static("/etcdserverpb.Cluster/MemberList");
    let request = Request::new(MemberListRequest { linearizable });
    Ok(grpc.unary(request, path, ProstCodec::default()).await?.into_inner())
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct AuthStatusRequest {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct AuthStatusResponse {
    #[prost(bool, tag = "2")]
    enabled: bool,
}

/// Whether users have to authenticate.
pub(super) async fn auth_enabled(channel: Channel) -> Result<bool, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static("/etcdserverpb.Auth/AuthStatus");
    let codec: ProstCodec<AuthStatusRequest, AuthStatusResponse> = ProstCodec::default();
    Ok(grpc.unary(Request::new(AuthStatusRequest {}), path, codec).await?.into_inner().enabled)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn linearizable_is_on_the_wire() {
        assert_eq!(MemberListRequest { linearizable: true }.encode_to_vec(), [0x08, 0x01]);
        assert!(MemberListRequest { linearizable: false }.encode_to_vec().is_empty());
    }
}
