//! Adds the current trace to the headers of events, in the format of W3C Trace Context.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt};

use crate::event::{Event, HeaderValue};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// W3C Trace Context allows this many list members.
const MEMBERS_MAX: usize = 32;
/// The size that every system must pass on. A longer header may be lost as a whole.
const STATE_BYTES_MAX: usize = 512;
/// Longer members are left out first.
const MEMBER_BYTES_MAX: usize = 128;

/// Adds the headers `traceparent` and `tracestate` of the current span, if there is one. Events that already have a
/// `traceparent` keep their headers.
pub fn add(events: &mut [Event]) {
    let Some(span) = current() else { return };
    let (parent, state) = (traceparent(&span), limited(&span.trace_state().header()));
    for event in events.iter_mut().filter(|event| !event.headers.contains_key(TRACEPARENT)) {
        event.headers.insert(TRACEPARENT.to_owned(), HeaderValue::Text(parent.clone()));
        // A state without its parent would belong to another trace.
        event.headers.remove(TRACESTATE);
        if !state.is_empty() {
            event.headers.insert(TRACESTATE.to_owned(), HeaderValue::Text(state.clone()));
        }
    }
}

/// The context of the current span of `tracing`, or else of OpenTelemetry.
fn current() -> Option<SpanContext> {
    let valid = |context: Context| Some(context.span().span_context().clone()).filter(SpanContext::is_valid);
    #[cfg(feature = "tracing")]
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        if let Some(span) = valid(tracing::Span::current().context()) {
            return Some(span);
        }
    }
    valid(Context::current())
}

fn traceparent(span: &SpanContext) -> String {
    format!("00-{:032x}-{:016x}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags())
}

/// Leaves out list members until the state is within the limits of W3C Trace Context. The oldest ones are at the end.
fn limited(state: &str) -> String {
    let mut members: Vec<&str> = state.split(',').filter(|member| !member.is_empty()).collect();
    members.truncate(MEMBERS_MAX);
    let bytes = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>();
    while bytes(&members) > STATE_BYTES_MAX + 1 {
        let longest = members.iter().rposition(|member| member.len() > MEMBER_BYTES_MAX);
        members.remove(longest.unwrap_or(members.len() - 1));
    }
    members.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

    fn span(flags: TraceFlags, state: TraceState) -> SpanContext {
        let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
        SpanContext::new(trace, SpanId::from_hex("00f067aa0ba902b7").unwrap(), flags, true, state)
    }

    fn headers(event: Event) -> Vec<(String, String)> {
        let mut events = [event];
        add(&mut events);
        let [event] = events;
        let text = |(name, value)| match value {
            HeaderValue::Text(text) => (name, text),
            HeaderValue::Binary { .. } => panic!("{name} is binary"),
        };
        event.headers.into_iter().map(text).collect()
    }

    fn event() -> Event {
        Event::new("order", 1, "E").tombstone()
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn the_headers_of_the_current_span_are_added() {
        let state = TraceState::from_key_value([("vendor", "a"), ("other", "b")]).unwrap();
        let _attached = Context::new().with_remote_span_context(span(TraceFlags::SAMPLED, state)).attach();
        assert_eq!(
            headers(event().header("h", "1")),
            [
                header("h", "1"),
                header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"),
                header("tracestate", "vendor=a,other=b"),
            ]
        );
    }

    #[test]
    fn a_trace_that_is_not_sampled_is_passed_on_too() {
        let _attached = Context::new()
            .with_remote_span_context(span(TraceFlags::default(), TraceState::default()))
            .attach();
        assert_eq!(
            headers(event().header("tracestate", "of=another")),
            [header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00")]
        );
    }

    /// W3C Trace Context, section 3.3.1.5.
    #[test]
    fn a_state_beyond_the_limits_loses_long_and_old_members() {
        let members = |count: usize, bytes: usize| -> Vec<String> {
            (0..count).map(|n| format!("m{n:02}={}", "x".repeat(bytes - 4))).collect()
        };
        for kept in ["", "a=1", &members(32, 15).join(","), &members(8, 63).join(","), &members(1, 512)[0]] {
            assert_eq!(limited(kept), kept);
        }
        assert_eq!(limited(&members(33, 8).join(",")), members(32, 8).join(","));
        assert_eq!(limited(&members(9, 63).join(",")), members(8, 63).join(","));
        let long = members(1, 129);
        let mixed = [&members(3, 100)[..], &long, &members(2, 100)].concat().join(",");
        assert_eq!(limited(&mixed), [members(3, 100), members(2, 100)].concat().join(","));
        assert_eq!(limited(&members(1, 600)[0]), "");
    }

    #[test]
    fn the_added_state_is_within_the_limits() {
        let pairs: Vec<(String, String)> = (0..10).map(|n| (format!("vendor{n}"), "a".repeat(60))).collect();
        let state = TraceState::from_key_value(pairs).unwrap();
        let _attached = Context::new().with_remote_span_context(span(TraceFlags::SAMPLED, state)).attach();
        let (_, state) = headers(event()).pop().unwrap();
        assert_eq!((state.split(',').count(), state.starts_with("vendor0=a")), (7, true), "{state}");
    }

    #[test]
    fn an_event_with_a_trace_keeps_it() {
        let state = TraceState::from_key_value([("vendor", "a")]).unwrap();
        let _attached = Context::new().with_remote_span_context(span(TraceFlags::SAMPLED, state)).attach();
        assert_eq!(headers(event().header("traceparent", "mine")), [header("traceparent", "mine")]);
    }

    #[test]
    fn without_a_span_nothing_is_added() {
        assert_eq!(headers(event().header("tracestate", "mine")), [header("tracestate", "mine")]);
        let _attached = Context::new().with_remote_span_context(SpanContext::empty_context()).attach();
        assert_eq!(headers(event()), []);
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn the_current_span_of_tracing_is_used() {
        use opentelemetry::trace::TracerProvider;
        use opentelemetry_sdk::trace::SdkTracerProvider;
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        use tracing_subscriber::layer::SubscriberExt;

        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let subscriber =
            tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer));
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(headers(event()), []);
            let outer = tracing::info_span!("request");
            outer.in_scope(|| {
                let inner = tracing::info_span!("pay");
                let expected = traceparent(inner.context().span().span_context());
                assert_ne!(expected, traceparent(outer.context().span().span_context()));
                assert_eq!(inner.in_scope(|| headers(event())), [header("traceparent", &expected)]);
            });
            assert_eq!(headers(event()), []);
        });
    }
}
