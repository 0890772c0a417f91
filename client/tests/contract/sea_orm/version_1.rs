use ::sea_orm_1 as sea_orm;

#[path = "backends.rs"]
mod backends;

contract!(sea_orm::DatabaseConnection);
