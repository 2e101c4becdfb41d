# The server of docs/serving.md. torch's wheels bring CUDA: the host needs its driver and nothing else.
FROM python:3.11-slim

RUN useradd --create-home dlm && apt-get update \
  && apt-get install --yes --no-install-recommends gcc libc6-dev \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/dlm
COPY --chown=dlm pyproject.toml setup.py constraints.txt README.md ./
COPY --chown=dlm dlm dlm
COPY --chown=dlm grammar grammar
COPY --chown=dlm kernels kernels
COPY --chown=dlm models models
RUN pip install --no-cache-dir --constraint constraints.txt torch \
  && pip install --no-cache-dir --constraint constraints.txt '.[serve]'

USER dlm
EXPOSE 8000
HEALTHCHECK --start-period=300s CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"
ENTRYPOINT ["dlm", "serve", "--host", "0.0.0.0"]
