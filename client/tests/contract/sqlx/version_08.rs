use ::sqlx_08 as sqlx;

#[path = "refusals.rs"]
mod refusals;

contract!(sqlx::PgConnection);

mod connection {
    contract!(crate::drivers::sqlx::version_08::Connected);
}
