# Built from the locks; runs as an ordinary user with a read-only root, /data being the only place that is written to.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/build && python -m venv --without-pip /opt/concertina
COPY requirements.lock requirements-build.lock ./
RUN /opt/build/bin/pip install --require-hashes --only-binary :all: --requirement requirements-build.lock
RUN /opt/build/bin/pip --python /opt/concertina install --require-hashes --only-binary :all: --requirement requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY config config
COPY migrations migrations
COPY concertina_gateway concertina_gateway
COPY app app
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/build/bin/pip --python /opt/concertina install --no-deps --no-index dist/*.whl

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="Concertina" \
      org.opencontainers.image.description="An OpenAI-compatible gateway whose conversations never outgrow the model's context window" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 concertina \
    && useradd --system --uid 10001 --gid concertina --home-dir /data --no-create-home --shell /usr/sbin/nologin concertina \
    && install --directory --owner concertina --group concertina /data
COPY --from=build /opt/concertina /opt/concertina
COPY config/image.yaml /opt/concertina/defaults.yaml
ENV PATH=/opt/concertina/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    CONCERTINA_DEFAULTS=/opt/concertina/defaults.yaml
USER concertina
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r, concertina_gateway.__main__; from app.settings import load_settings; r.urlopen(f'http://127.0.0.1:{load_settings().server.port}/healthz', timeout=2)"]
CMD ["concertina", "serve"]
