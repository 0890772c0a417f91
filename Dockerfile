# An image of the relay. It needs BuildKit (on Debian and Ubuntu, the package docker-buildx):
#   docker build --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" --tag outbox-relay .
#
# There is no HEALTHCHECK, because the image contains no HTTP client. Probe [admin] listen from outside, as
# deploy/kubernetes does: /livez checks that the relay makes progress, /readyz that it can publish events.
#
# The base images are pinned by digest, and Dependabot proposes newer ones. By hand:
#   docker buildx imagetools inspect debian:bookworm-slim --format '{{.Manifest.Digest}}'

FROM rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
# Embeds the list of crates in the program, so that image scanners find them.
RUN cargo install --locked cargo-auditable@0.7.7
COPY . .
# The commit that --version shows. The build does not include the repository itself.
ARG COMMIT="not known"
ENV OUTBOX_RELAY_COMMIT=${COMMIT}
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo auditable build --release --locked --package pg-outbox-relay --features aws --bin outbox-relay \
    && install -D -m 755 --target-directory /out/usr/bin target/release/outbox-relay \
    && strip /out/usr/bin/outbox-relay \
    && mkdir -p /out/usr/share/doc/outbox-relay \
    && cp LICENSE-MIT LICENSE-APACHE /out/usr/share/doc/outbox-relay/ \
    && scripts/third-party notices >/out/usr/share/doc/outbox-relay/THIRD-PARTY \
    && SOURCE_DATE_EPOCH=$(stat --format=%Y Cargo.lock) scripts/third-party sbom /out/usr/bin/outbox-relay \
        >/out/usr/share/doc/outbox-relay/outbox-relay.cdx.json

FROM debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251
LABEL org.opencontainers.image.title="outbox-relay" \
    org.opencontainers.image.description="Publishes committed events from a PostgreSQL outbox table to Kafka" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=65532 --group=65532 --mode=700 /etc/outbox-relay
COPY --from=build /out/ /
# A user that owns only the folder in which `init` writes the configuration, if a volume is mounted there. Given as a number, so that
# Kubernetes can verify that it is not root.
USER 65532:65532
EXPOSE 10187
ENTRYPOINT ["/usr/bin/outbox-relay"]
CMD ["run"]
