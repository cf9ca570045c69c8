# marft with what training needs; sandboxed programs want a runtime that allows user namespaces (marft doctor says).
#   docker build -t marft .
#   docker run --rm marft doctor
#   docker run --rm -v "$PWD/runs:/srv/marft/runs" marft train --env relay-v0
FROM python:3.12-slim

# PIP_ARGS: an index of your own, or that of torch's CPU build.
ARG EXTRAS=train,data,mcp,hosted,smollm2
ARG PIP_ARGS=""
ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1

RUN useradd --uid 10001 --create-home --home-dir /srv/marft marft
WORKDIR /usr/src/marft
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY marft_envs marft_envs
COPY marft_algos marft_algos
RUN pip install --no-cache-dir ${PIP_ARGS} -c constraints.txt ".[${EXTRAS}]"

USER 10001
WORKDIR /srv/marft
ENTRYPOINT ["marft"]
CMD ["doctor"]
