package linkerd

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// An ExternalWorkload is a workload outside of the cluster, with the fields that are read here.
type ExternalWorkload struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		MeshTLS    MeshTLS        `json:"meshTLS"`
		OldMeshTLS MeshTLS        `json:"meshTls"` // the name of it in v1alpha1; empty once parsed
		Ports      []WorkloadPort `json:"ports"`

		WorkloadIPs []struct {
			IP string `json:"ip"`
		} `json:"workloadIPs"`
	} `json:"spec"`

	Status struct {
		Conditions []struct {
			Type   string                 `json:"type"`
			Status corev1.ConditionStatus `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// MeshTLS is how proxies verify a workload.
type MeshTLS struct {
	Identity   string `json:"identity"`
	ServerName string `json:"serverName"`
}

// A WorkloadPort is a port that an ExternalWorkload documents.
type WorkloadPort struct {
	Name     string          `json:"name"`
	Port     int32           `json:"port"`
	Protocol corev1.Protocol `json:"protocol"`
}

// ParseExternalWorkload reads an ExternalWorkload of any of ExternalWorkloadVersions. Nothing of it is validated
// but the types of its fields.
func ParseExternalWorkload(u *unstructured.Unstructured) (*ExternalWorkload, error) {
	var w ExternalWorkload
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &w); err != nil {
		return nil, err
	}
	if w.Spec.MeshTLS == (MeshTLS{}) {
		w.Spec.MeshTLS = w.Spec.OldMeshTLS
	}
	w.Spec.OldMeshTLS = MeshTLS{}
	return &w, nil
}

// Ready reports whether the condition Ready is True.
func (w *ExternalWorkload) Ready() bool {
	for _, c := range w.Status.Conditions {
		if c.Type == string(corev1.PodReady) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
