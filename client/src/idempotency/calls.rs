use crate::call::{Call, Kind, Schema};

/// The module's statements in one schema.
#[derive(Debug)]
pub struct Calls {
    pub begin: Call,
    pub finish: Call,
    pub reach: Call,
    pub extend: Call,
    pub release: Call,
    pub abandoned: Call,
}

impl Calls {
    pub fn new(schema: &Schema) -> Calls {
        use Kind::{Bytes, Flag, Number, Seconds, Text};
        Calls {
            begin: Call::new(
                schema,
                "SELECT outcome, token::text, attempts, recovery_point, phases::text, in_progress_seconds,
                        retry_after_seconds, status, headers::text, body
                 FROM {schema}.idempotency_begin($1, $2, $3, make_interval(secs => $4), $5)",
                &[Text, Text, Number, Text, Text, Seconds, Seconds, Number, Text, Bytes],
            ),
            finish: Call::new(
                schema,
                "SELECT {schema}.idempotency_finish($1, $2, $3::text::uuid, $4, $5::text::jsonb, $6)",
                &[],
            ),
            reach: Call::new(
                schema,
                "SELECT {schema}.idempotency_reach($1, $2, $3::text::uuid, $4, $5::text::jsonb,
                                                   make_interval(secs => $6))",
                &[],
            ),
            extend: Call::new(
                schema,
                "SELECT {schema}.idempotency_extend($1, $2, $3::text::uuid, make_interval(secs => $4))",
                &[],
            ),
            release: Call::new(
                schema,
                "SELECT {schema}.idempotency_release($1, $2, $3::text::uuid)",
                &[Flag],
            ),
            abandoned: Call::new(
                schema,
                "SELECT scope, key, token::text, attempts, recovery_point, phases::text, request
                 FROM {schema}.idempotency_abandoned(make_interval(secs => $1), make_interval(secs => $2), $3, $4)",
                &[Text, Text, Text, Number, Text, Text, Bytes],
            ),
        }
    }
}
