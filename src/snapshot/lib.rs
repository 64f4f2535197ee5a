//! Readers of the files that etcd writes: without network, tokio or Kubernetes.
