# syntax=docker/dockerfile:1
# An image of your application on a released forkq. Copy it into your project, and its app into it:
#
#   docker build -f Dockerfile.app -t registry.example/shop/forkq:1.0.0 .
#
# What does not change with each build comes first, so that a new version of the app pushes little.
# The reasons for the lines that Dockerfile has, too, stand there.

FROM python:3.13-slim
RUN groupadd --system --gid 10001 forkq \
    && useradd --system --uid 10001 --gid 10001 --home-dir /app --shell /usr/sbin/nologin forkq \
    && install -d -o forkq -g forkq -m 0750 /run/forkq /var/lib/forkq
WORKDIR /app
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RUNTIME_DIRECTORY=/run/forkq \
    STATE_DIRECTORY=/var/lib/forkq \
    FORKQ_ENVIRONMENT=production \
    FORKQ_LOG_FORMAT=json
# One version in all images that share a Redis; `metrics` and `web` are for kubernetes-metrics.yaml and
# kubernetes-web.yaml, which run this image, too.
ARG FORKQ_VERSION=0.1.0
RUN pip install --no-cache-dir "forkq[metrics,web]==${FORKQ_VERSION}"
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt "forkq==${FORKQ_VERSION}"
COPY app app
USER 10001:10001

STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["forkq-probe", "ready"]
ENTRYPOINT ["forkq"]
CMD ["start", "--require", "app.jobs"]
