# The command `privkit` in an image: docs/how-to/install.md builds and runs it.
FROM python:3.11-slim

# torch's build: `cpu`, one for CUDA such as `cu130`, or empty for the package index's own, which on Linux has CUDA. `auto` asks
# the machine that builds the image, and takes `cpu` where that one has no GPU.
ARG TORCH_BACKEND=cpu
# On a GPU long trainings are compiled, which takes a C compiler.
RUN [ "$TORCH_BACKEND" = cpu ] || { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -r /var/lib/apt/lists/*; }

# The user may not write compiled modules beside the sources, so every start would compile them anew.
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1
RUN pip install --no-cache-dir uv

# Dependencies are a layer of their own, which a change of privkit's code leaves as it is.
WORKDIR /src
COPY pyproject.toml .
RUN uv pip install --system ${TORCH_BACKEND:+--torch-backend=$TORCH_BACKEND} --requirements pyproject.toml
COPY . .
RUN uv pip install --system --no-deps .

# Caches go below HOME, which any user of `docker run --user` may write.
ENV HOME=/tmp
RUN useradd privkit && install --directory --owner privkit /work
USER privkit
WORKDIR /work
ENTRYPOINT ["privkit"]
