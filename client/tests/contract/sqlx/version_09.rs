use ::sqlx;

#[path = "clients.rs"]
mod clients;
#[path = "refusals.rs"]
mod refusals;

contract!(sqlx::PgConnection);

mod connection {
    contract!(crate::drivers::sqlx::version_09::Connected);
}
