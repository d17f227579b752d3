package app_test

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	http "github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/discovery/proxyapi"
)

// policied renders a message of the Policy API. What is the same in every message is left out, and only there.
func policied(name string, p *proxy.Policy) []string {
	if p.Repeated {
		return []string{name + " policy repeated"}
	}
	var w policyWriter
	if p.Inbound != nil {
		w.inbound(name, partOf(p.Inbound))
	} else {
		w.outbound(name, partOf(p.Outbound))
	}
	return w.lines
}

// A part is a message in a policy. Routes of HTTP, gRPC, TLS and opaque connections have types of their own, with
// fields of the same names. What a type does not have is absent.
type part struct{ protoreflect.Message }

func partOf(m proto.Message) part { return part{m.ProtoReflect()} }

func (p part) field(name string) protoreflect.FieldDescriptor {
	return p.Descriptor().Fields().ByName(protoreflect.Name(name))
}

// can reports whether a message of the type may have a field.
func (p part) can(name string) bool { return p.field(name) != nil }

func (p part) has(name string) bool { return p.can(name) && p.Has(p.field(name)) }

// at returns the message in a field. An absent one is empty.
func (p part) at(name string) part {
	if !p.can(name) {
		return partOf((*netpb.IPAddress)(nil)) // as any type would do
	}
	return part{p.Get(p.field(name)).Message()}
}

func (p part) list(name string) []part {
	if !p.can(name) {
		return nil
	}
	values := p.Get(p.field(name)).List()
	all := make([]part, values.Len())
	for i := range all {
		all[i] = part{values.Get(i).Message()}
	}
	return all
}

func (p part) texts(name string) []string {
	if !p.can(name) {
		return nil
	}
	values := p.Get(p.field(name)).List()
	all := make([]string, values.Len())
	for i := range all {
		all[i] = values.Get(i).String()
	}
	return all
}

// text returns bytes, a string or a number as text.
func (p part) text(name string) string {
	switch f := p.field(name); {
	case f == nil:
		return ""
	case f.Kind() == protoreflect.BytesKind:
		return string(p.Get(f).Bytes())
	default:
		return p.Get(f).String()
	}
}

// which returns the field of a oneof that is set.
func (p part) which(oneof string) string {
	of := p.Descriptor().Oneofs().ByName(protoreflect.Name(oneof))
	if of == nil {
		return ""
	}
	if set := p.WhichOneof(of); set != nil {
		return string(set.Name())
	}
	return ""
}

// duration returns that in a field, as text; - for none.
func (p part) duration(name string) string {
	if !p.has(name) {
		return "-"
	}
	return duration(p.at(name).Interface().(*durationpb.Duration))
}

// about returns the metadata of a message.
func (p part) about() *meta.Metadata {
	if !p.has("metadata") {
		return nil
	}
	return p.at("metadata").Interface().(*meta.Metadata)
}

func (p part) labels() map[string]string {
	all := map[string]string{}
	p.Get(p.field("labels")).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all[k.String()] = v.String()
		return true
	})
	return all
}

func (p part) ip(name string) string {
	if addr, is := proxyapi.ParseIP(p.at(name).Interface().(*netpb.IPAddress)); is {
		return addr.String()
	}
	return "-"
}

// policyWriter has the lines of one message.
type policyWriter struct{ lines []string }

func (w *policyWriter) write(depth int, words ...string) {
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	w.lines = append(w.lines, strings.Repeat("  ", depth)+strings.Join(words, " "))
}

// unless returns NAME=TEXT, or nothing for what is the same everywhere.
func unless(usual, name, text string) string {
	if text == usual {
		return ""
	}
	return name + "=" + text
}

func brackets(all []string, separator string) string { return "[" + strings.Join(all, separator) + "]" }

func (w *policyWriter) inbound(name string, m part) {
	kind := m.at("protocol").which("kind")
	protocol := m.at("protocol").at(kind)
	var ips []string
	for _, ip := range m.list("server_ips") {
		addr, _ := proxyapi.ParseIP(ip.Interface().(*netpb.IPAddress))
		ips = append(ips, addr.String())
	}
	w.write(0, name, "policy", protocolText(kind, protocol), labelText(m.labels()),
		unless("[]", "ips", brackets(ips, " ")))

	w.limit(protocol.at("local_rate_limit"))
	w.limit(protocol.at("http_local_rate_limit"))
	w.authorizations(1, m)
	w.routes(1, protocol)
}

// protocolText renders a protocol, with the time in which it is detected if that is not 10 s.
func protocolText(kind string, protocol part) string {
	if kind == "detect" {
		kind += strings.TrimPrefix(unless("10s", "", protocol.duration("timeout")), "=")
	}
	return dash(kind)
}

// labelText renders the labels of a port or an authorization.
func labelText(all map[string]string) string {
	group, grouped := all["group"]
	switch {
	case len(all) != 3 || !grouped || all["kind"] == "" || all["name"] == "":
		return labels(all)
	case group == "" && all["kind"] == "default":
		return "default/" + all["name"]
	default:
		return group + "/" + all["kind"] + "/" + all["name"]
	}
}

func (w *policyWriter) limit(limit part) {
	if !limit.IsValid() {
		return
	}

	words := []string{"limit", reference(limit.about())}
	for _, of := range []string{"total", "identity"} {
		if limit.has(of) {
			words = append(words, of+"="+limit.at(of).text("requestsPerSecond"))
		}
	}

	for _, override := range limit.list("overrides") {
		var clients []string
		for _, identity := range override.at("clients").list("identities") {
			clients = append(clients, identity.text("name"))
		}
		words = append(words, brackets(clients, " ")+"="+override.at("limit").text("requestsPerSecond"))
	}
	w.write(1, words...)
}

// authorizations renders those of a port or a route. Labels follow from metadata.
func (w *policyWriter) authorizations(depth int, of part) {
	for _, a := range of.list("authorizations") {
		about, labelled := a.about(), ""
		of := about.GetResource()
		follow := map[string]string{"group": of.GetGroup(), "kind": of.GetKind(), "name": of.GetName()}
		if of == nil {
			follow = map[string]string{"group": "", "kind": "default", "name": about.GetDefault()}
		}
		if all := a.labels(); !maps.Equal(all, follow) {
			labelled = "labels=" + labelText(all)
		}

		var networks []string
		for _, n := range a.list("networks") {
			networks = append(networks, networkText(n))
		}
		w.write(depth, "allow", reference(about), clients(a.at("authentication")), "from",
			strings.Join(networks, " "), labelled)
	}
}

func networkText(n part) string {
	block := func(p part) string { return p.ip("ip") + "/" + p.text("prefix_len") }
	text := block(n.at("net"))
	for _, except := range n.list("except") {
		text += "-" + block(except)
	}
	return text
}

// clients renders which clients are let in.
func clients(authentication part) string {
	switch authentication.which("permit") {
	case "unauthenticated":
		return "anyone"
	case "":
		return "-"
	}

	mesh := authentication.at("meshTLS")
	switch mesh.which("clients") {
	case "unauthenticated":
		return "tls"
	case "":
		return "tls=-"
	}

	var all []string
	for _, identity := range mesh.at("identities").list("identities") {
		all = append(all, identity.text("name"))
	}
	for _, suffix := range mesh.at("identities").list("suffixes") {
		all = append(all, suffixText(suffix.texts("parts")))
	}
	return brackets(all, " ")
}

func suffixText(parts []string) string { return "suffix(" + strings.Join(parts, " ") + ")" }

func (w *policyWriter) outbound(name string, m part) {
	kind := m.at("protocol").which("kind")
	protocol := m.at("protocol").at(kind)
	w.write(0, name, "policy", protocolText(kind, protocol), reference(m.about()))
	if kind != "detect" {
		w.found(1, protocol)
		return
	}

	http1, http2 := protocol.at("http1"), protocol.at("http2")
	var one, two policyWriter // two types with equal fields
	one.found(2, http1)
	two.found(2, http2)
	switch {
	case http1.IsValid() == http2.IsValid() && slices.Equal(one.lines, two.lines):
		w.write(1, "http1", "http2", absent(http1))
		w.lines = append(w.lines, one.lines...)
	default:
		w.write(1, "http1", absent(http1))
		w.lines = append(w.lines, one.lines...)
		w.write(1, "http2", absent(http2))
		w.lines = append(w.lines, two.lines...)
	}
	w.write(1, "opaque", absent(protocol.at("opaque")))
	w.found(2, protocol.at("opaque"))
}

func absent(p part) string {
	if p.IsValid() {
		return ""
	}
	return "absent"
}

// found renders what becomes of a protocol.
func (w *policyWriter) found(depth int, protocol part) {
	if accrual := protocol.at("failure_accrual"); protocol.has("failure_accrual") {
		w.accrual(depth, accrual)
	}
	w.routes(depth, protocol)
}

func (w *policyWriter) accrual(depth int, accrual part) {
	kind := accrual.which("kind")
	of := accrual.at(kind)
	words := []string{"accrual"}
	switch kind {
	case "consecutive_failures":
		words = append(words, "consecutive", "failures="+of.text("max_failures"))
	case "unified":
		words = append(words, "unified", "threshold="+of.text("success_rate_threshold"), "window="+of.duration("decay"),
			"requests="+of.text("min_requests"), "failures="+of.text("max_consecutive_failures"))
	default:
		words = append(words, "-")
	}
	if of.can("backoff") {
		words = append(words, "backoff="+backoffText(of, "backoff"))
	}
	if accrual.has("ejection") {
		words = append(words, "ejection="+accrual.at("ejection").text("min_ready_endpoints"))
	}
	w.write(depth, words...)
}

// backoffText renders MIN/MAX/JITTER, and that a server may ask for more.
func backoffText(of part, name string) string {
	if !of.has(name) {
		return "-"
	}
	b := of.at(name)
	text := b.duration("min_backoff") + "/" + b.duration("max_backoff") + "/" + b.text("jitter_ratio")
	if b.has("respect_retry_after_hint") {
		text += "/hint"
	}
	return text
}

func (w *policyWriter) routes(depth int, of part) {
	for _, r := range slices.Concat(of.list("http_routes"), of.list("routes")) {
		w.write(depth, "route", reference(r.about()),
			unless("[]", "hosts", hostsText(r.list("hosts"))), unless("[]", "snis", hostsText(r.list("snis"))))
		w.authorizations(depth+1, r)
		for _, rule := range r.list("rules") {
			w.rule(depth+1, rule)
		}
	}
}

func hostsText(hosts []part) string {
	all := make([]string, 0, len(hosts))
	for _, h := range hosts {
		switch h.which("match") {
		case "exact":
			all = append(all, h.text("exact"))
		case "suffix":
			all = append(all, suffixText(h.at("suffix").texts("reverse_labels")))
		default:
			all = append(all, "-")
		}
	}
	return brackets(all, " ")
}

func (w *policyWriter) rule(depth int, rule part) {
	words := []string{"rule"}
	if rule.can("matches") {
		words = append(words, brackets(each(rule.list("matches"), matchText), ", "))
	}
	if rule.can("timeouts") {
		words = append(words, timeoutsText(rule), retryText(rule))
	}
	if rule.has("allow_l5d_request_headers") {
		words = append(words, "l5d-headers")
	}
	w.write(depth, words...)

	w.filters(depth+1, rule)
	if rule.can("backends") {
		w.backends(depth+1, rule.at("backends"))
	}
}

// each renders each of some messages.
func each(parts []part, render func(part) string) []string {
	all := make([]string, 0, len(parts))
	for _, p := range parts {
		all = append(all, render(p))
	}
	return all
}

// matchText renders a match; any for one that matches everything.
func matchText(m part) string {
	var words []string
	if m.has("method") {
		words = append(words, methodText(m.at("method").Interface().(*http.HttpMethod)))
	}
	if m.has("path") {
		kind := m.at("path").which("kind")
		words = append(words, dash(kind)+"("+m.at("path").text(kind)+")")
	}
	if m.has("rpc") {
		words = append(words, "rpc("+m.at("rpc").text("service")+"/"+m.at("rpc").text("method")+")")
	}
	words = append(words, each(m.list("headers"), func(p part) string { return "header" + valueText(p) })...)
	words = append(words, each(m.list("query_params"), func(p part) string { return "query" + valueText(p) })...)
	if words == nil {
		return "any"
	}
	return strings.Join(words, " ")
}

func methodText(m *http.HttpMethod) string {
	switch method := m.GetType().(type) {
	case *http.HttpMethod_Registered_:
		return method.Registered.String()
	case *http.HttpMethod_Unregistered:
		return strconv.Quote(method.Unregistered)
	default:
		return "method(-)"
	}
}

// valueText renders what a header or a parameter must be, NAME=VALUE or NAME~REGEX.
func valueText(m part) string {
	switch m.which("value") {
	case "exact":
		return "(" + m.text("name") + "=" + m.text("exact") + ")"
	case "regex":
		return "(" + m.text("name") + "~" + m.text("regex") + ")"
	default:
		return "(" + m.text("name") + ")"
	}
}

// timeoutsText renders those that are set. The older field for the first one is equal to it.
func timeoutsText(rule part) string {
	if !rule.has("timeouts") {
		return strings.TrimSpace("timeouts=- " + unless("-", "request-timeout", rule.duration("requestTimeout")))
	}
	var set []string
	timeouts := rule.at("timeouts")
	for _, name := range []string{"request", "response", "idle"} {
		if timeouts.has(name) {
			set = append(set, name+"="+timeouts.duration(name))
		}
	}
	return strings.TrimSpace(unless("[]", "timeouts", brackets(set, " ")) + " " +
		unless(timeouts.duration("request"), "request-timeout", rule.duration("requestTimeout")))
}

func retryText(rule part) string {
	if !rule.has("retry") {
		return ""
	}
	retry, conditions := rule.at("retry"), "-"
	if retry.has("conditions") {
		conditions = conditionsText(retry.at("conditions"))
	}
	words := []string{
		"limit=" + retry.text("max_retries"), unless("-", "timeout", retry.duration("timeout")), "on=" + conditions,
		unless("65536", "bytes", retry.text("max_request_bytes")),
		unless("25ms/250ms/1", "backoff", backoffText(retry, "backoff")),
	}
	return "retry=" + brackets(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// conditionsText renders statuses, or codes of gRPC by the names of their fields.
func conditionsText(conditions part) string {
	if conditions.can("status_ranges") {
		return dash(strings.Join(each(conditions.list("status_ranges"), func(p part) string {
			return p.text("start") + "-" + p.text("end")
		}), ","))
	}
	var set []string
	for _, name := range []string{"cancelled", "deadine_exceeded", "resource_exhausted", "internal", "unavailable"} {
		if conditions.has(name) {
			set = append(set, strings.ReplaceAll(strings.Replace(name, "deadine", "deadline", 1), "_", "-"))
		}
	}
	return dash(strings.Join(set, ","))
}

func (w *policyWriter) filters(depth int, of part) {
	for _, f := range of.list("filters") {
		kind := f.which("kind")
		words := []string{"filter", strings.ReplaceAll(dash(kind), "_", "-")}
		filter := f.at(kind)
		switch kind {
		case "failure_injector":
			words[1] = "fail"
			if filter.can("status") {
				words = append(words, filter.text("status"))
			} else {
				words = append(words, filter.text("code"))
			}
			words = append(words, strconv.Quote(filter.text("message")))
			if filter.has("ratio") {
				ratio := filter.at("ratio")
				words = append(words, "ratio="+ratio.text("numerator")+"/"+ratio.text("denominator"))
			}
		case "request_header_modifier", "response_header_modifier":
			words[1] = strings.TrimSuffix(words[1], "-header-modifier") + "-headers"
			words = append(words, unless("[]", "set", headersText(filter, "set")),
				unless("[]", "add", headersText(filter, "add")),
				unless("[]", "remove", brackets(filter.texts("remove"), " ")))
		case "redirect":
			words = append(words, redirectText(filter)...)
		case "invalid":
			words = append(words, strconv.Quote(filter.text("message")))
		}
		w.write(depth, words...)
	}
}

func headersText(of part, name string) string {
	return brackets(each(of.at(name).list("headers"), func(h part) string {
		return h.text("name") + "=" + h.text("value")
	}), " ")
}

func redirectText(r part) []string {
	var scheme, path string
	if r.has("scheme") {
		switch s := r.at("scheme").Interface().(*http.Scheme); s.GetType().(type) {
		case *http.Scheme_Registered_:
			scheme = s.GetRegistered().String()
		case *http.Scheme_Unregistered:
			scheme = strconv.Quote(s.GetUnregistered())
		default:
			scheme = "-"
		}
	}
	if r.has("path") {
		kind := r.at("path").which("replace")
		path = dash(kind) + "(" + r.at("path").text(kind) + ")"
	}
	return []string{
		unless("", "scheme", scheme), unless("", "host", r.text("host")), unless("", "path", path),
		unless("0", "port", r.text("port")), unless("0", "status", r.text("status")),
	}
}

// backends renders how the requests of a rule are distributed.
func (w *policyWriter) backends(depth int, distribution part) {
	switch kind := distribution.which("kind"); kind {
	case "first_available":
		for _, b := range distribution.at(kind).list("backends") {
			w.backend(depth, "first", b)
		}
	case "random_available":
		for _, b := range distribution.at(kind).list("backends") {
			w.backend(depth, "random "+b.text("weight"), b.at("backend"))
		}
	default:
		w.write(depth, dash(kind))
	}
}

func (w *policyWriter) backend(depth int, how string, of part) {
	backend := of.at("backend")
	words := []string{how, reference(backend.about())}
	switch backend.which("kind") {
	case "balancer":
		balancer := backend.at("balancer")
		words = append(words, "balancer", dash(balancer.at("discovery").at("dst").text("path")), loadText(balancer))
	case "forward":
		words = append(words, "forward", forwardText(backend.at("forward")))
	default:
		words = append(words, "nowhere")
	}

	queue := "-"
	if q := backend.at("queue"); backend.has("queue") {
		queue = q.text("capacity") + "/" + q.duration("failfast_timeout")
	}
	words = append(words, unless("100/3s", "queue", queue))
	if of.can("requestTimeout") {
		words = append(words, unless("-", "request-timeout", of.duration("requestTimeout")))
	}
	w.write(depth, words...)
	w.filters(depth+1, of)
}

// loadText renders how load is estimated, if otherwise than everywhere: PENALTY/DECAY/MAXIMUM of penalties for
// failures.
func loadText(balancer part) string {
	kind := balancer.which("load")
	if kind == "" {
		return "load=-"
	}
	load, penalty := balancer.at(kind), ""
	if kind == "penalty_peak_ewma" {
		penalty = "penalty=" + load.duration("penalty") + "/" + load.duration("penalty_decay") + "/" +
			load.duration("max_retry_after")
	}
	return strings.TrimSpace(penalty + " " +
		unless("30ms/10s", "ewma", load.duration("default_rtt")+"/"+load.duration("decay")))
}

// forwardText renders an address and its weight, and the names of fields that none should have.
func forwardText(forward part) string {
	addr := forward.at("addr")
	ip, _ := netip.ParseAddr(addr.ip("ip"))
	port, _ := strconv.Atoi(addr.text("port"))
	text := netip.AddrPortFrom(ip, uint16(port)).String() + " weight=" + forward.text("weight")

	var others []string
	forward.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Name() != "addr" && f.Name() != "weight" {
			others = append(others, string(f.Name()))
		}
		return true
	})
	slices.Sort(others)
	return strings.TrimSpace(text + " " + strings.Join(others, " "))
}
