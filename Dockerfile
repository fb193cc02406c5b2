FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY controllers controllers
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheels . \
    && pip install --quiet --no-cache-dir --no-warn-script-location --prefix /installed /wheels/*.whl

FROM python:3.11-slim
COPY --from=build /installed /usr/local
# The home directory is named because this user has no entry in /etc/passwd that one could be looked up in.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/nonexistent
USER 65532:65532
CMD ["gpu-mirage-compute-domain"]
