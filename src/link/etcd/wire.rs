//! The one request of etcd's API that the client crate cannot send: its `member_list` always asks for the local answer,
//! which may be stale. The field numbers are etcd's (`rpc.proto`).

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
