# pslib for containers: docker build -t pslib:1 .
# The wheel is compiled once; the image has Python, the wheel and what it needs, and no compiler.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels -c constraints.txt '.[plot,serve,ui]'

FROM python:3.11-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'sparse-pslib[plot,serve,ui]' && rm -rf /wheels
# Any user id will do: pslib writes to volumes and /tmp only.
USER 10001
ENV HOME=/tmp PYTHONUNBUFFERED=1
ENTRYPOINT ["pslib"]
