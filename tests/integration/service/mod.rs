//! The relay as a service: logs, reload, secrets, sandbox and status page.

mod clusters;
mod core_dumps;
mod logs;
mod package_upgrade;
mod recorded_template;
mod reload;
mod sandbox;
mod secrets;
mod status_page;
mod systemd;
mod unit_file;
mod version;
