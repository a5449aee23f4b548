# The image that deploy/ runs. Everything in it comes from Debian and from PyPI.
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m venv /opt/claude-batch
RUN /opt/claude-batch/bin/pip install --no-cache-dir '.[dashboard,gateway,postgres]'

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/*
# Kubernetes checks `runAsNonRoot` by the number.
RUN groupadd --gid 10001 claude-batch \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/claude-batch --create-home claude-batch
COPY --from=build /opt/claude-batch /opt/claude-batch
ENV PATH=/opt/claude-batch/bin:$PATH
ENV CLAUDE_BATCH_LEDGER=/var/lib/claude-batch/ledger.db
ENV CLAUDE_BATCH_STATE_DIR=/var/lib/claude-batch/state
USER 10001:10001
WORKDIR /var/lib/claude-batch
ENTRYPOINT ["claude-batch"]
CMD ["--help"]
