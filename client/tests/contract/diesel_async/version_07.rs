use ::diesel_async_07 as diesel_async;

#[path = "boxed_closures.rs"]
mod boxed_closures;
#[path = "refusals.rs"]
mod refusals;

contract!(diesel_async::AsyncPgConnection);
