# The toolchain is that of go.mod, and runs on the machine that builds: only the compiler's output is of the other architecture.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26.3 AS build
WORKDIR /src
COPY . .
ARG TARGETOS TARGETARCH VERSION
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/fingerpost

FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="fingerpost" \
      org.opencontainers.image.description="Streams the live endpoints of a Service in all linked Kubernetes clusters to the proxies of a mesh." \
      org.opencontainers.image.source="https://github.com/fingerpost/fingerpost" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# For API servers whose kubeconfig names no authority of its own.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/fingerpost /usr/local/bin/
# On the PATH for kubectl exec; without a shell, and without a user of a name.
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/fingerpost"]
