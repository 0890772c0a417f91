use ::sea_orm;

#[path = "backends.rs"]
mod backends;

contract!(sea_orm::DatabaseConnection);
