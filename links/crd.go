package links

import _ "embed" // for CRD

// CRD is the definition of Links in YAML: Linkerd's, with conditions in the status.
//
//go:embed crd/links.yaml
var CRD []byte
