//! Generates the gRPC code from `proto/`; needs `protoc` (see `make setup`).

fn main() -> std::io::Result<()> {
    let root = "../../proto";
    let files = ["quorate/peer/v1/peer.proto", "quorate/member/v1/member.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={root}/{file}");
    }
    tonic_prost_build::configure().compile_protos(&files.map(|f| format!("{root}/{f}")), &[root.to_owned()])
}
