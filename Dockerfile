# One image for the site, the workers, the scheduler and the one-shot commands; docker-compose.yml says which does what and
# how each is asked for its health.

FROM python:3.11.15-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
COPY requirements.txt /build/
# PyPI's torch for Linux is for GPUs and several gigabytes large; name PyTorch's CPU index here for the small build.
ARG TORCH_INDEX=""
RUN if [ -n "$TORCH_INDEX" ]; then \
        /opt/venv/bin/pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' /build/requirements.txt)"; fi \
    && /opt/venv/bin/pip install -r /build/requirements.txt

FROM python:3.11.15-slim-bookworm
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DJANGO_SETTINGS_MODULE=auditor.settings \
    ORT_DISABLE_TELEMETRY=1 OMP_NUM_THREADS=1
# A new volume takes over the owner of the folder that it is mounted on: /scratch for uploads and inputs, /store for objects.
RUN groupadd --gid 10001 auditor \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin auditor \
    && install -d -o 10001 -g 10001 -m 0700 /scratch /store
COPY --from=build /opt/venv /opt/venv
COPY . /app
WORKDIR /app
# The key lives for this one command; it signs nothing that is kept.
RUN SECRET_KEY="$(python -c 'import secrets; print(secrets.token_urlsafe(50))')" python manage.py collectstatic --noinput \
    && python -m compileall -q /app/auditor /app/audits
USER 10001:10001
EXPOSE 8000
CMD ["gunicorn", "auditor.wsgi", "--bind", "0.0.0.0:8000", "--workers", "3", "--threads", "4", \
     "--timeout", "120", "--graceful-timeout", "20", "--worker-tmp-dir", "/tmp", "--no-control-socket"]
