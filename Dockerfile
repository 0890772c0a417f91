# syntax=docker/dockerfile:1
# An image of the relay: docker build --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" --tag outbox-relay .
#
# There is no HEALTHCHECK, because the image contains no HTTP client. Probe [admin] listen from outside, as
# deploy/kubernetes does: /livez checks that the relay makes progress, /readyz that it can publish events.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The commit that --version shows. The build does not include the repository itself.
ARG COMMIT="not known"
ENV OUTBOX_RELAY_COMMIT=${COMMIT}
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package pg-outbox-relay --package outbox-bench --features pg-outbox-relay/aws \
        --bin outbox-relay --bin outbox-bench \
    && install -D -m 755 --target-directory /out target/release/outbox-relay target/release/outbox-bench \
    && strip /out/outbox-relay /out/outbox-bench

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="outbox-relay" \
    org.opencontainers.image.description="Publishes committed events from a PostgreSQL outbox table to Kafka" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/outbox-relay /out/outbox-bench /usr/bin/
# A user that owns no files. Given as a number, so that Kubernetes can verify that it is not root.
USER 65532:65532
EXPOSE 10187
ENTRYPOINT ["/usr/bin/outbox-relay"]
CMD ["run"]
