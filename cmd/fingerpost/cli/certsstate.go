package cli

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/identity/ca"
)

// CertificatesOf returns what is wrong with the trust anchors and the issuer of the mesh whose control plane is in a
// namespace, and whether leaves can be issued all the same; and when the worst of them ends, which is the first one if
// nothing is wrong. The error is why they cannot be read, as the API server has it.
func CertificatesOf(
	ctx context.Context, client kubernetes.Interface, namespace string,
) (problem string, usable bool, ends time.Time, err error) {
	mesh, err := readMeshCerts(ctx, client, namespace)
	if err != nil {
		return "", false, time.Time{}, err
	}

	now := time.Now()
	usable = ca.Verify(mesh.issuer, mesh.bundle, now) == nil
	worst := mesh.page(now).Certificates[0] // a mesh has a bundle of one at least
	if worst.Problem != "" {
		problem = fmt.Sprintf("%s %s: %s (until %s)",
			worst.Kind, Printable(worst.Subject), worst.Problem, utc(worst.NotAfter))
	}
	return problem, usable, worst.NotAfter, nil
}
