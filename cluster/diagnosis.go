package cluster

import (
	"context"
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

// A Diagnosis is what was tried over one Access of a cluster, step by step.
type Diagnosis struct {
	Source string     `json:"source"`
	Steps  []api.Step `json:"steps"`
}

// The errors of Diagnose.
var (
	ErrUnknownCluster = errors.New("there is no such cluster")
	ErrDiagnosing     = errors.New("another diagnosis is under way: try again in a moment")
)

// Diagnose goes the way to a cluster step by step, over each Access that its Spec has, with connections of its own. One
// diagnosis is made at a time.
func (r *Registry) Diagnose(ctx context.Context, name string) (all []Diagnosis, err error) {
	spec, known := r.Spec(name)
	if !known {
		return nil, ErrUnknownCluster
	}
	if !r.diagnosing.TryLock() {
		return nil, ErrDiagnosing
	}
	defer r.diagnosing.Unlock()

	questions := api.Questions{Rights: []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: r.options.ControllerNamespace},
		{Verb: "create", Group: "discovery.k8s.io", Resource: "endpointslices"},
	}}

	inputs := view.NewReconciler(r.log, federation.Cluster(name), view.Options{
		Local: spec.Local, Endpoints: r.options.Endpoints,
	}).Inputs()
	for _, input := range inputs {
		if input.Required {
			questions.Required = append(questions.Required, input.Kind)
		} else {
			questions.Optional = append(questions.Optional, input.Kind)
		}
	}

	for _, access := range spec.Access {
		all = append(all, Diagnosis{access.Source, api.Diagnose(ctx, access.Config, r.options.Dial, questions)})
	}
	return all, nil
}
