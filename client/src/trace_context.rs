//! Adds the current trace to the headers of events, in the format of W3C Trace Context.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt};

use crate::event::Event;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Adds the headers `traceparent` and `tracestate` of the current span, if there is one. Events that already have a
/// `traceparent` keep their headers.
pub fn add(events: &mut [Event]) {
    let Some(span) = current() else { return };
    let (parent, state) = (traceparent(&span), span.trace_state().header());
    for event in events.iter_mut().filter(|event| !event.headers.contains_key(TRACEPARENT)) {
        event.headers.insert(TRACEPARENT.to_owned(), parent.clone());
        // A state without its parent would belong to another trace.
        event.headers.remove(TRACESTATE);
        if !state.is_empty() {
            event.headers.insert(TRACESTATE.to_owned(), state.clone());
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
        event.headers.into_iter().collect()
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
