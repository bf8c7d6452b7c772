# docker buildx bake --set '*.tags=REGISTRY/perennial:VERSION' --push
variable "VERSION" {
  default = "0.1.0"
}

group "default" {
  targets = ["perennial"]
}

target "perennial" {
  context    = "."
  dockerfile = "packaging/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = ["perennial:${VERSION}"]
  attest     = ["type=sbom", "type=provenance,mode=max"]
}
