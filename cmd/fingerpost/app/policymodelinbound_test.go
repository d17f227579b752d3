package app_test

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rulesAt returns the routes of a port with their rules, as the model has them. Whom they let in is in its lines.
func (m *policyModel) rulesAt(port modelPort) (all []modelRoute) {
	protocol, name := "detect", ""
	for _, server := range m.of("Server") {
		of, selects := serverProtocol(server, port)
		if selects {
			protocol, name = of, server.GetName()
			break
		}
	}
	m.sees("rules of a port of " + protocol)

	kinds := []string{"HTTPRoute", "HTTPRoute.policy"}
	switch protocol {
	case "opaque", "tls":
		return nil
	case "grpc":
		kinds = []string{"GRPCRoute"}
	}

	if all = m.serverRoutes(name, kinds); len(all) > 0 {
		m.sees("routes of a port of " + protocol)
		return all
	}
	if protocol == "grpc" {
		return []modelRoute{ownRoute("default", "rpc(/)")}
	}
	all = append(all, ownRoute("default", "prefix(/)"))
	if port.probed {
		all = append(all, ownRoute("probe", "GET exact(/live)", "GET exact(/ready)"))
	}
	return all
}

func ownRoute(name string, matches ...string) modelRoute {
	return modelRoute{About: "default/" + name, Rules: []modelRule{{Matches: matches, How: "-"}}}
}

// serverRoutes returns the routes of some kinds that are a Server's.
func (m *policyModel) serverRoutes(server string, kinds []string) (all []modelRoute) {
	of := modelRef{"Server", "shop", server}
	for _, route := range m.of(kinds...) {
		counts := slices.ContainsFunc(m.parentsOf(&route), func(p modelParent) bool {
			return p.modelRef == of && p.port == 0 && !p.section && !m.excluded(&route, p)
		})
		if counts {
			all = append(all, m.serverRoute(&route))
		}
	}
	return all
}

func (m *policyModel) serverRoute(route *unstructured.Unstructured) (to modelRoute) {
	to.About = route.GroupVersionKind().Group + "/" + route.GetKind() + "//" + route.GetName()
	hosts, known := m.hostsOf(route)
	if to.Hosts = hosts; !known {
		return to
	}

	kind := kindIn(*route)
	for _, v := range listOf(specOf(route)["rules"]) {
		matches, known := m.matchesOf(kind, fieldsOf(v))
		if !known {
			continue
		}
		filters := m.serverFilters(kind, fieldsOf(v)["filters"])
		to.Rules = append(to.Rules, modelRule{Matches: matches, Filters: filters, How: "-"})
	}
	return to
}

// serverFilters returns filters as the proxy of a Server gets them: without changes of responses.
func (m *policyModel) serverFilters(kind string, list any) (all []string) {
	for _, v := range listOf(list) {
		f, converts := filterOf(kind, v)
		switch {
		case !converts:
			m.sees("a filter at a Server that does not convert")
			return []string{failureOf(kind) + " for a reason"}
		case f.kind == "ResponseHeaderModifier":
			m.sees("a change of responses at a Server")
		default:
			all = append(all, f.text)
		}
	}
	return all
}

// withoutAllows returns routes without whom they let in.
func withoutAllows(routes []modelRoute) (all []modelRoute) {
	for _, route := range routes {
		route.Allows = nil
		all = append(all, route)
	}
	return all
}
