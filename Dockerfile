# The CPU target. deploy/chroot_replay.sh --dockerfile runs these steps where there is no container engine.

FROM debian:bookworm-slim AS builder
WORKDIR /src
COPY deploy/install_deps.sh deploy/install_deps.sh
RUN ./deploy/install_deps.sh
COPY . .
RUN cmake --preset release -DBUILD_TESTING=OFF \
    && cmake --build --preset release --target comoe \
    && install -D --strip build/release/cli/comoe /out/comoe

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0 \
       libpcre2-8-0 libutf8proc2 libhwy1 libxxhash0 libzip4 \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 comoe \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin comoe
COPY --from=builder /out/comoe /usr/local/bin/comoe
COPY models/moe-32x4-demo /models/moe-32x4-demo
USER 10001:10001
# Fails here, not at the first start, if a library is missing.
RUN ["comoe", "--help"]
EXPOSE 50051 9400
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["comoe", "health", "--server", "127.0.0.1:50051"]
ENTRYPOINT ["comoe"]
CMD ["serve", "--model", "/models/moe-32x4-demo", "--device", "cpu", \
     "--listen", "0.0.0.0:50051", "--metrics-listen", "0.0.0.0:9400"]
