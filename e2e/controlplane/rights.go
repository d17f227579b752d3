package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Deny takes from the account of id, whatever its credentials, the right to do
// one thing with one resource, such as to watch endpointslices.discovery.k8s.io.
// It waits until the API server refuses it, and then cuts the connections of
// the cluster's proxies, because a watch that is open stays open whatever
// becomes of the right to it.
func (c *Cluster) Deny(ctx context.Context, id *Identity, verb, resource string) error {
	if err := c.changeRights(ctx, id, verb, schema.ParseGroupResource(resource), false); err != nil {
		return fmt.Errorf("deny %s/%s to %s %s in cluster %q: %w", id.Namespace, id.Name, verb, resource, c.name, err)
	}
	c.cutConnections()
	return nil
}

// Allow gives the account of id the right that Deny took, and waits until the
// API server grants it.
func (c *Cluster) Allow(ctx context.Context, id *Identity, verb, resource string) error {
	if err := c.changeRights(ctx, id, verb, schema.ParseGroupResource(resource), true); err != nil {
		return fmt.Errorf("allow %s/%s to %s %s in cluster %q: %w", id.Namespace, id.Name, verb, resource, c.name, err)
	}
	return nil
}

func (c *Cluster) changeRights(ctx context.Context, id *Identity, verb string, resource schema.GroupResource,
	allow bool,
) error {
	if id.Namespace == "" {
		return errors.New("the admin has all rights")
	}
	roles, err := c.rolesOf(ctx, id)
	if err != nil {
		return err
	}
	for _, role := range roles {
		role.Rules = without(role.Rules, verb, resource)
	}
	if allow {
		roles[0].Rules = append(roles[0].Rules, rbacv1.PolicyRule{
			APIGroups: []string{resource.Group}, Resources: []string{resource.Resource}, Verbs: []string{verb},
		})
	}
	for _, role := range roles {
		if _, err := c.client().typed.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	name, subresource, _ := strings.Cut(resource.Resource, "/")
	question := &authorizationv1.ResourceAttributes{
		Group:       resource.Group,
		Resource:    name,
		Subresource: subresource,
		Verb:        verb,
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return until(ctx, func(ctx context.Context) error {
		allowed, err := c.allows(ctx, id, question)
		if err == nil && allowed != allow {
			err = fmt.Errorf("the API server allows it: %t", allowed)
		}
		return err
	})
}

// rolesOf returns the ClusterRoles that are bound to the account of id in the
// whole cluster, at least one.
func (c *Cluster) rolesOf(ctx context.Context, id *Identity) ([]*rbacv1.ClusterRole, error) {
	client := c.client().typed.RbacV1()
	bindings, err := client.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var roles []*rbacv1.ClusterRole
	for _, b := range bindings.Items {
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == id.Namespace && s.Name == id.Name
		}) {
			continue
		}
		role, err := client.ClusterRoles().Get(ctx, b.RoleRef.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		roles = append(roles, role)
	}
	if len(roles) == 0 {
		return nil, errors.New("no ClusterRole is bound to it")
	}
	return roles, nil
}

// without returns the rules less one verb on one resource. A rule that is about
// other resources too becomes one rule for each.
func without(rules []rbacv1.PolicyRule, verb string, resource schema.GroupResource) []rbacv1.PolicyRule {
	var less []rbacv1.PolicyRule
	for _, rule := range rules {
		if !slices.Contains(rule.APIGroups, resource.Group) || !slices.Contains(rule.Resources, resource.Resource) {
			less = append(less, rule)
			continue
		}
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				one := rule.DeepCopy()
				one.APIGroups, one.Resources = []string{group}, []string{name}
				if group == resource.Group && name == resource.Resource {
					one.Verbs = slices.DeleteFunc(one.Verbs, func(v string) bool { return v == verb })
				}
				if len(one.Verbs) > 0 {
					less = append(less, *one)
				}
			}
		}
	}
	return less
}
