use ::diesel_async;

#[path = "closures.rs"]
mod closures;
#[path = "refusals.rs"]
mod refusals;

contract!(diesel_async::AsyncPgConnection);
