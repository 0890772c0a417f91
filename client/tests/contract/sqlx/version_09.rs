use ::sqlx;

#[path = "refusals.rs"]
mod refusals;

contract!(sqlx::PgConnection);

mod connection {
    contract!(crate::drivers::sqlx::version_09::Connected);
}
