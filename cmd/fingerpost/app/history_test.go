package app_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A history is drawn from a seed, before anything runs: equal seeds make equal scripts. How the goroutines of a
// run are scheduled, what jitter is added to retries and in which order maps are walked is not drawn, so that a
// history that fails rarely may need several runs to do it again.
//
// A deed is something that happens once, or a fault with its end. Without any of the deeds the others are
// possible all the same, which is what makes a history easy to shorten: numbers of endpoints are absolute, and
// deeds that would need one another are one deed. Rounds of deeds alternate with times in which nothing is done
// and all faults have ended, long enough for everything to settle, and end in a comparison with the model.
type history struct {
	random   *rand.Rand
	clusters []string
	setup    []string
	deeds    []deed
	compares []time.Duration // when the model is compared

	busy map[string]time.Duration // until when something is taken by a deed
	from time.Duration            // when the round has begun
	took []string                 // what the last deed took
	left []unfinished             // deeds that the next round ends
	next map[string]int           // number of the next new endpoint, by cluster and Service
	have map[string][]int         // numbers of its endpoints
	bad  map[string]bool          // annotations of clusters that have values which cannot be read, and no others
	news int                      // streams that are opened by deeds, and releases

	members  []string      // of the Service with slices
	policies bool          // some are drawn
	slicing  bool          // slices are written into linked clusters
	midnight time.Duration // at which the first round begins, about so long after midnight
	depot    *depotDraws   // nil for none
}

// deed is one thing that is done: lines of the script, and when. What happens later is for the next round, after a
// comparison with the model.
type deed []moment

type moment struct {
	at   time.Duration
	line string
}

// unfinished is a deed, and what it holds until it is finished.
type unfinished struct {
	deed int
	took []string
}

const (
	simProxies  = 20
	simProfiles = 4
	later       = 1000 * time.Hour // what is after that comes so long after what is then
	forever     = 2 * later
)

var (
	simServices = []string{"web", "api"}
	simClusters = []string{home, "east", "west", "north", "south"}
)

func newHistory(seed uint64, length time.Duration) *history {
	h := &history{
		random: rand.New(rand.NewPCG(seed, 0)), busy: map[string]time.Duration{},
		next: map[string]int{}, have: map[string][]int{}, bad: map[string]bool{},
	}
	h.clusters = simClusters[:3+h.random.IntN(3)]
	h.policies = h.random.IntN(3) > 0
	h.slicing = !h.policies && h.random.IntN(3) > 0
	h.depot = newDepotDraws(seed, h.policies)
	h.prepare()
	for now := time.Duration(0); now < length; {
		round := h.seconds(30, 150)
		if h.random.IntN(4) == 0 {
			round = h.seconds(180, 280) // long enough for a cluster to be Stale
		}
		now += round + h.round(now, now+round)
		h.compares = append(h.compares, now)
		now += time.Second
	}
	return h
}

func (h *history) prepare() {
	add := func(format string, args ...any) { h.setup = append(h.setup, fmt.Sprintf(format, args...)) }
	add("flags -federated-slices -mirror-services=on -state-dir -peers")
	add("apply local fleet/shop.yaml")
	if h.policies {
		add("apply local traffic/nodes.yaml")
	}
	late := ""
	if h.random.IntN(3) == 0 {
		late = h.linked() // streams are open before it is linked
	}
	for _, name := range h.clusters {
		if h.random.IntN(4) == 0 {
			add("unstream %s", name)
		}
		if h.random.IntN(2) == 0 {
			add("multiplex %s", name)
		}
		for _, service := range simServices {
			h.next[name+"/"+service], h.have[name+"/"+service] = 3, []int{1, 2, 3}
			add("%s", h.scale(name, service))
		}
		switch name {
		case home:
			h.members = append(h.members, "web")
			continue
		case late: // in the first round
			h.left = append(h.left, unfinished{len(h.deeds), []string{name + " link"}})
			h.deeds = append(h.deeds, h.linking(later, name))
		default:
			for _, m := range h.linking(0, name) {
				add("%s", m.line)
			}
		}
		if h.policies {
			add("apply %s traffic/linkerd.yaml", name)
		}
		h.members = append(h.members, "web@"+name)
	}
	for _, name := range h.clusters {
		if name != home && (!h.slicing || !byLink(name)) {
			continue
		}
		add("endpoints %s shop/all", name)
		of := slices.Clone(h.members) // as this cluster names them
		of[0] = "web@" + home
		of[slices.Index(h.clusters, name)] = "web"
		add(`patch %s Service shop/all {"metadata":{"annotations":{%q:%q,%q:"enabled"}}}`,
			name, membersOf, strings.Join(of, ","), slicesAnnotation)
	}
	add(`patch east Service shop/api {"metadata":{"labels":{%q:"remote-discovery"}}}`, exportedLabel)
	add(`patch east Service shop/web {"metadata":{"labels":{%q:"member"}}}`, federatedLabel)
	add(`patch west Service shop/api {"metadata":{"labels":{%q:"true"}}}`, exportedLabel)
	add("start replica-2")
	for i := range simProxies {
		of := []string{"all", "all", "web-federated", "web", "api-east", "web-federated"}[i%6]
		add("%s", h.opening(fmt.Sprintf("p%d", i+1), of))
	}
	for i := range simProfiles {
		add("profile f%d %s.shop.svc.mycluster.local:80 via=replica-%d", i+1, []string{"web", "all"}[i/2%2], 1+i%2)
	}
	h.prepareDepot()
	add("advance 20s")
	add("compare")
	h.midnight = time.Duration(len(h.setup)+1)*settle + 20*time.Second
}

// byLink reports whether a cluster has a Link; others have a labelled Secret.
func byLink(cluster string) bool { return cluster == "east" || cluster == "west" }

// linking links a cluster.
func (h *history) linking(at time.Duration, cluster string) deed {
	if !byLink(cluster) {
		return deed{{at, "link " + cluster + " trust-domain=" + cluster + ".test"}}
	}
	d := deed{{at, "apply local fleet/" + cluster + "-link.yaml"}}
	if h.slicing {
		d = append(d, moment{at, "annotate local Link mc/" + cluster + " endpoint-slices=enabled"})
	}
	return d
}

// opening opens a stream to a Service from a node of its own.
func (h *history) opening(stream, service string) string {
	h.news++
	token := fmt.Sprintf(`{"ns":"shop","nodeName":"node-%d"}`, h.news)
	return fmt.Sprintf("get %s %s.shop.svc.mycluster.local:80 via=replica-%d token=%q",
		stream, service, 1+h.news%2, token)
}

// script returns deeds as lines of a script.
func (h *history) script(deeds []deed) string {
	var moments []moment
	for _, d := range deeds {
		for _, m := range d {
			if m.at < later { // else the history is over before
				moments = append(moments, m)
			}
		}
	}
	for _, at := range h.compares {
		moments = append(moments, moment{at, "compare"})
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	lines := slices.Clone(h.setup)
	now := time.Duration(0)
	for _, m := range moments {
		if m.at > now+settle {
			lines = append(lines, fmt.Sprintf("advance %s", m.at-now-settle))
			now = m.at
		} else {
			m.line = "+ " + m.line
		}
		lines = append(lines, m.line)
	}
	return strings.Join(lines, "\n") + "\n"
}

func (h *history) pick(all ...string) string { return all[h.random.IntN(len(all))] }

func (h *history) seconds(from, to int) time.Duration {
	return time.Duration(from)*time.Second + time.Duration(h.random.IntN(1000*(to-from)))*time.Millisecond
}

// round draws the deeds of a time, and returns how long it takes for everything to settle after them.
func (h *history) round(from, to time.Duration) (settles time.Duration) {
	settles, h.from = simSettle, from
	for _, u := range h.left {
		at := from + h.seconds(0, int((to-from)/time.Second))
		last := at
		for i := range h.deeds[u.deed] {
			if m := &h.deeds[u.deed][i]; m.at >= later {
				m.at = min(to, at+m.at-later)
				last = m.at
			}
		}
		for _, thing := range u.took {
			h.busy[thing] = last + time.Second
		}
	}
	h.left = nil
	draw := func(kind deedKind, at, end time.Duration) {
		d := kind.draw(h, at, end)
		if d == nil {
			return
		}
		if d[len(d)-1].at >= later {
			h.left = append(h.left, unfinished{len(h.deeds), h.took})
		}
		h.deeds = append(h.deeds, d)
		settles = max(settles, kind.settles)
	}
	if h.random.IntN(4) == 0 {
		draw(spoiling, from, to) // before there is anything else
	}
	if to-from > 3*time.Minute && h.random.IntN(2) == 0 {
		draw(absence, from, to)
	}
	for range 2 + h.random.IntN(12) {
		at := from + h.seconds(0, int((to-from)/time.Second))
		if h.random.IntN(4) == 0 && len(h.deeds) > 0 {
			if last := h.deeds[len(h.deeds)-1][0].at; from <= last && last < to {
				at = last // at once
			}
		}
		end := min(to, at+h.seconds(1, 60))
		if h.random.IntN(4) == 0 {
			end = to
		}
		kinds := deedKinds
		if h.policies && h.random.IntN(3) == 0 {
			kinds = policyKinds
		}
		chances := 0
		for _, kind := range kinds {
			chances += kind.chance
		}
		chance := h.random.IntN(chances)
		for _, kind := range kinds {
			if chance -= kind.chance; chance < 0 {
				draw(kind, at, end)
				break
			}
		}
	}
	h.depotRound(from, to)
	return settles
}

// take reserves things until a time, and reports whether they were free.
func (h *history) take(at, until time.Duration, things ...string) bool {
	for _, thing := range things {
		if at < h.busy[thing] {
			return false
		}
	}
	for _, thing := range things {
		h.busy[thing] = until + time.Second
	}
	h.took = things
	return true
}

func (h *history) cluster() string { return h.pick(h.clusters...) }
func (h *history) linked() string  { return h.pick(h.clusters[1:]...) }
func (h *history) replica() string { return h.pick("replica-1", "replica-2") }

// deedKind draws deeds of one kind, between two times; nil if none is possible.
type deedKind struct {
	chance  int // relative to those of other kinds
	settles time.Duration
	draw    func(h *history, at, end time.Duration) deed
}

const (
	simSettle = 75 * time.Second
	simSilent = 220 * time.Second // until it is noticed that a watch is silent

	simPermission = 450*time.Second + simSettle // until it is noticed that a permission is there again
	simServed     = 50*time.Second + simSettle  // likewise, that a kind is served which was absent
)

// failing are what API servers can fail to answer.
var failing = []string{
	"services", "pods", sliceResource, leaseResource, linkResource, "secrets", "readyz", serverResource,
	profileResource, externalResource,
}

// permitted are the resources that permissions are about.
var permitted = []string{
	"services", "pods", sliceResource, leaseResource, linkResource, "secrets", "endpoints", serverResource,
	profileResource, externalResource,
}

var deedKinds = []deedKind{
	{30, 0, func(h *history, at, _ time.Duration) deed {
		cluster, service := h.cluster(), h.pick(simServices...)
		if !h.take(at, at-time.Second, cluster+"/"+service) {
			return nil
		}
		return deed{{at, h.scale(cluster, service)}}
	}},
	{5, 0, func(h *history, at, end time.Duration) deed { // deleted and created again, with other endpoints
		cluster, service := h.cluster(), h.pick(simServices...)
		if h.random.IntN(3) == 0 {
			end = later
		}
		if !h.take(at, end, cluster+"/"+service) {
			return nil
		}
		return deed{{at, "delete " + cluster + " Service shop/" + service}, {end, h.scale(cluster, service)}}
	}},
	{4, 0, func(h *history, at, end time.Duration) deed { // deleted while no watch shows it
		cluster, service, replica := h.linked(), h.pick(simServices...), h.replica()
		away := deed{{at, "stop " + replica}, {end, "start " + replica}}
		things := []string{cluster + "/" + service, "replicas", replica}
		if h.random.IntN(2) == 0 {
			away = deed{
				{at, "partition " + cluster + " refuse"}, {at, "rotate " + cluster + " anew"}, {end, "heal " + cluster},
			}
			things = []string{cluster + "/" + service, cluster + " network", cluster + " link"}
		}
		if !h.take(at, later, things...) {
			return nil
		}
		return append(slices.Insert(away, 1, moment{at, "delete " + cluster + " Service shop/" + service}),
			moment{later, h.scale(cluster, service)})
	}},
	{5, 0, func(h *history, at, _ time.Duration) deed { // joins a federated Service, or leaves it
		cluster, service := h.cluster(), h.pick(simServices...)
		if !h.take(at, at-time.Second, cluster+"/"+service) {
			return nil
		}
		label, value := federatedLabel, h.pick(`"member"`, "null")
		if service == "api" {
			label, value = exportedLabel, h.pick(`"remote-discovery"`, `"true"`, "null")
			if cluster == "east" { // of which there are streams
				value = h.pick(`"remote-discovery"`, "null")
			}
		}
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)
		return deed{{at, "patch " + cluster + " Service shop/" + service + " " + patch}}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed { // has other members, or no slices
		switch of := h.cluster() + " Service shop/all endpoint-slices"; h.random.IntN(3) {
		case 0:
			return h.annotation(at, end, of, "disabled", "enabled")
		case 1:
			if !h.take(at, end, of) {
				return nil
			}
			return deed{{at, "annotate " + of + "=maybe"}, {end, "annotate " + of + "=enabled"}}
		}
		if h.slicing { // there are more of this Service, in other clusters
			return nil
		}
		fewer := slices.Clone(h.members)
		for range 1 + h.random.IntN(2) {
			i := h.random.IntN(len(fewer))
			fewer = slices.Delete(fewer, i, i+1)
		}
		return h.annotation(at, end, "local Service shop/all members",
			strings.Join(fewer, ","), strings.Join(h.members, ","))
	}},
	{6, 0, func(h *history, at, end time.Duration) deed { // what clients receive besides addresses
		cluster, file, deleted := h.cluster(), "opaque", "Server shop/opaque"
		if h.random.IntN(3) == 0 {
			cluster, file = home, h.pick("web", "all")+"-profile"
			deleted = "ServiceProfile shop/" + strings.TrimSuffix(file, "-profile") + ".shop.svc.mycluster.local"
		}
		if h.random.IntN(2) == 0 {
			end = later
		}
		if !h.take(at, end, cluster+" "+file) {
			return nil
		}
		return deed{{at, "apply " + cluster + " fleet/" + file + ".yaml"}, {end, "delete " + cluster + " " + deleted}}
	}},
	{3, 0, func(h *history, at, _ time.Duration) deed { // a Pod is deleted, and its endpoint is not yet
		cluster, service := h.cluster(), h.pick(simServices...)
		have := h.have[cluster+"/"+service]
		if len(have) == 0 || !h.take(at, at+2*time.Second, cluster+"/"+service) {
			return nil
		}
		n := have[h.random.IntN(len(have))]
		return deed{
			{at, fmt.Sprintf("delete %s Pod shop/%s-%d", cluster, service, n)},
			{at + 2*time.Second, h.scale(cluster, service)},
		}
	}},
	{10, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.cluster()
		if !h.take(at, end, cluster+" network") {
			return nil
		}
		return deed{{at, "partition " + cluster + " " + h.pick("silence", "refuse")}, {end, "heal " + cluster}}
	}},
	{9, 0, func(h *history, at, end time.Duration) deed { // from one cluster, or from all
		replica, cluster := h.replica(), h.cluster()
		if h.random.IntN(3) == 0 {
			cluster = ""
		}
		if !h.take(at, end, replica+" network "+cluster, replica) {
			return nil
		}
		to := strings.TrimSpace(replica + " " + cluster)
		return deed{{at, "isolate " + to}, {end, "rejoin " + to}}
	}},
	{12, 0, func(h *history, at, end time.Duration) deed { // with its state, or without
		replica := h.replica()
		if !h.take(at, end, "replicas", replica) {
			return nil
		}
		d := deed{{at, h.pick("stop ", "kill ") + replica}, {end, "start " + replica}}
		if h.random.IntN(2) == 0 {
			d = slices.Insert(d, 1, moment{end, "disk " + replica + " " + h.pick("lose", "lose", "tear")})
		}
		return d
	}},
	{4, 0, func(h *history, at, end time.Duration) deed { // one more for some time, which restores nothing
		if !h.take(at, end, "replica-3") {
			return nil
		}
		return deed{
			{at, "disk replica-3 lose"}, {at, "start replica-3"}, {end, h.pick("stop", "kill") + " replica-3"},
		}
	}},
	{6, 0, func(h *history, at, end time.Duration) deed { // they know nothing of a cluster that is away
		cluster, replicas := h.linked(), []string{h.replica()}
		if h.random.IntN(2) == 0 {
			replicas = []string{"replica-1", "replica-2"}
		}
		// Without their state they do not know the Links of a CRD that is gone.
		if !h.take(at, end, "replicas", "replica-1", "replica-2", "links", cluster+" network") {
			return nil
		}
		d := deed{{at, "partition " + cluster + " " + h.pick("silence", "refuse")}}
		for _, replica := range replicas {
			d = append(d, moment{at, "kill " + replica}, moment{at, "disk " + replica + " lose"})
		}
		for _, replica := range replicas {
			d = append(d, moment{at, "start " + replica})
		}
		return append(d, moment{end, "heal " + cluster})
	}},
	{4, 0, func(h *history, at, end time.Duration) deed { // one starts without its state, and has no credentials
		cluster, quarter := h.linked(), (end-at)/4
		things := []string{
			"replicas", "replica-1", "replica-2", "links", cluster + " link", home + " network", home + " delay",
		}
		for _, resource := range failing { // it is ready before the other one stops, as in a rollout
			things = append(things, home+" "+resource)
		}
		if quarter < 5*time.Second || !h.take(at, end, things...) {
			return nil
		}
		one, other := "replica-1", "replica-2"
		if h.random.IntN(2) == 0 {
			one, other = other, one
		}
		return deed{
			{at, "spoil " + cluster + h.pick("", " wholly")},
			{at, "kill " + one},
			{at, "disk " + one + " lose"},
			{at + quarter, "start " + one},
			{at + 3*quarter, "stop " + other},
			{end, "start " + other},
			{end, "rotate " + cluster},
		}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		replica := h.replica()
		if !h.take(at, end, replica) {
			return nil
		}
		return deed{{at, "disk " + replica + " break"}, {end, "disk " + replica + " repair"}}
	}},
	{6, 0, func(h *history, at, end time.Duration) deed {
		cluster, resource := h.cluster(), h.pick(failing...)
		if !h.take(at, end, cluster+" "+resource) {
			return nil
		}
		code := h.pick("429 1", "429 15", "503", "500", "504 3")
		begin := "fail " + cluster + " " + resource + " "
		return deed{{at, begin + code}, {end, begin + "0"}}
	}},
	{3, simPermission, func(h *history, at, end time.Duration) deed { // a permission is taken away, or all are
		cluster, resource := h.cluster(), h.pick(permitted...)
		if !h.take(at, end, cluster+" "+resource) {
			return nil
		}
		if what := cluster + " " + resource; h.random.IntN(2) == 0 {
			return deed{{at, "forbid " + what}, {end, "allow " + what}}
		}
		what := cluster + " " + h.pick("list", "watch", "create", "update", "patch", "delete") + " " + resource
		return deed{{at, "deny " + what}, {end, "grant " + what}}
	}},
	{4, 0, func(h *history, at, end time.Duration) deed { // a kind cannot be listed when a cluster is engaged anew
		cluster, replica := h.cluster(), h.replica()
		resource := h.pick(serverResource, externalResource)
		if cluster == home {
			resource = h.pick(serverResource, externalResource, profileResource)
		}
		things, anew := []string{cluster + " " + resource, cluster + " link"}, "rotate "+cluster+" anew"
		if cluster == home || h.random.IntN(2) == 0 {
			things, anew = append(things, "replicas", replica), "start "+replica
		}
		if end < at+10*time.Second || !h.take(at, end, things...) {
			return nil
		}
		d := deed{{at, "fail " + cluster + " " + resource + " 503"}, {at + time.Second, anew}}
		if strings.HasPrefix(anew, "start") {
			d = slices.Insert(d, 1, moment{at, "stop " + replica})
		}
		return append(d, moment{end, "fail " + cluster + " " + resource + " 0"})
	}},
	{2, 0, func(h *history, at, end time.Duration) deed { // by a quota or a webhook
		cluster, resource := h.cluster(), h.pick("services", sliceResource)
		if !h.take(at, end, cluster+" "+resource+" quota") {
			return nil
		}
		what := cluster + " create " + resource + " shop"
		return deed{{at, "reject " + what}, {end, "admit " + what}}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		cluster, resource := h.cluster(), h.pick(failing...)
		if !h.take(at, end, cluster+" "+resource) {
			return nil
		}
		what := cluster + " " + resource
		d := deed{{at, "replace-answers " + what}, {end, "restore-answers " + what}}
		return slices.Insert(d, 1, moment{at, "expire " + cluster})
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.cluster()
		if !h.take(at, end, cluster+" delay") {
			return nil
		}
		begin := "delay " + cluster + " "
		return deed{{at, begin + h.pick("100ms", "900ms", "4s", "20s")}, {end, begin + "0s"}}
	}},
	{4, 0, func(h *history, at, _ time.Duration) deed { return deed{{at, "expire " + h.cluster()}} }},
	{2, simSilent, func(h *history, at, end time.Duration) deed {
		cluster, resource := h.cluster(), h.pick(failing[:6]...)
		if !h.take(at, end, cluster+" "+resource) {
			return nil
		}
		what := cluster + " " + resource
		return deed{{at, "stall-watches " + what}, {end, "expire " + cluster}, {end, "resume-watches " + what}}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.linked()
		if !h.take(at, end, cluster+" link") {
			return nil
		}
		return deed{{at, "rotate " + cluster + h.pick("", " anew")}}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.pick("east", "west")
		if !h.take(at, end, cluster+" link") {
			return nil
		}
		return append(deed{{at, "delete local Secret mc/" + cluster}}, h.linking(end, cluster)...)
	}},
	{3, 0, func(h *history, at, end time.Duration) deed { // a Link names no cluster that can be linked
		cluster := h.pick("east", "west")
		if !h.take(at, end, cluster+" link", "links") {
			return nil
		}
		patch := fmt.Sprintf(`{"spec":{"targetClusterName":%q}}`, h.pick("", "local", "east-"))
		return append(deed{{at, "patch local Link mc/" + cluster + " " + patch}}, h.linking(end, cluster)...)
	}},
	{3, 0, func(h *history, at, end time.Duration) deed { // a Link selects other Services
		cluster := h.pick("east", "west")
		// Which of two changes is noticed first, of the Link or of a Service, is not known.
		if !h.take(at, end, cluster+" link", "links", cluster+"/web", cluster+"/api") {
			return nil
		}
		selector := h.pick(exportedSelector, federatedSelector)
		patch := fmt.Sprintf(`{"spec":{%q:{"matchLabels":{%q:"none"}}}}`, selector, selected[selector])
		return append(deed{{at, "patch local Link mc/" + cluster + " " + patch}}, h.linking(end, cluster)...)
	}},
	{5, 0, func(h *history, at, end time.Duration) deed { // two paths, of which one works at any time
		cluster := h.pick("east", "west")
		// Of a cluster that is just being listed over the other path, no list confirms what a watch misreports.
		if !h.take(at, forever, cluster+" link") || !h.take(at, later, cluster+" network", cluster+" backup") {
			return nil
		}
		second := "second." + cluster
		cut := func(at time.Duration, path string) moment {
			return moment{at, "partition " + path + " " + h.pick("silence", "refuse")}
		}
		d := append(h.linking(at, cluster), // which is so already, unless that deed was left out
			moment{at, "link " + cluster + " trust-domain=" + trust + " path=" + second})
		if h.random.IntN(2) == 0 {
			d = append(deed{cut(at, second)}, d...)
		} else {
			d = append(d, cut(end, second))
		}
		d = append(d, moment{later, "heal " + second}, cut(later, cluster))
		if h.random.IntN(2) == 0 {
			return d
		}
		return append(d, moment{later + h.seconds(5, 100), "heal " + cluster}, cut(later+h.seconds(100, 200), second))
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.linked()
		if h.random.IntN(2) == 0 {
			end = later
		}
		if !h.take(at, end, cluster+" link", "links") { // most Links at once are held
			return nil
		}
		if byLink(cluster) {
			return append(deed{{at, "delete local Link mc/" + cluster}}, h.linking(end, cluster)...)
		}
		return deed{{at, "unlink " + cluster}, {end, "link " + cluster}}
	}},
	// For less than the grace of deletions.
	{2, simServed, func(h *history, at, end time.Duration) deed {
		if end = min(end, at+4*time.Minute); !h.take(at, end, "east link", "west link", "links") {
			return nil
		}
		return slices.Concat(deed{
			{at, "delete local CustomResourceDefinition " + linkResource},
			{at, "serve local " + linkResource},
			{end, "serve local " + linkResource + " v1alpha3 v1alpha2 v1alpha1"},
		}, h.linking(end, "east"), h.linking(end, "west"))
	}},
	{1, 0, func(h *history, at, _ time.Duration) deed {
		cluster := h.linked()
		if byLink(cluster) || !h.take(at, at, cluster+" link") {
			return nil
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%s.%s"}}}`, trustAnnotation, cluster, h.pick("test", "other"))
		return deed{{at, "patch local Secret " + ours + "/cluster-credentials-" + cluster + " " + patch}}
	}},
	{3, 0, func(h *history, at, end time.Duration) deed {
		proxy := fmt.Sprintf("p%d", 1+h.random.IntN(simProxies))
		if !h.take(at, end, proxy) {
			return nil
		}
		return deed{{at, "stall " + proxy}, {end, "resume " + proxy}}
	}},
	{3, 0, func(h *history, at, _ time.Duration) deed {
		service := h.pick("all", "web-federated", "api-east")
		return deed{{at, h.opening(fmt.Sprintf("q%d", h.news), service)}}
	}},
	{3, simSilent, func(h *history, at, end time.Duration) deed {
		cluster := h.linked()
		// Where a Lease is renewed, the version is what it was before, and a resumed watch goes on, sooner than silence
		// is noticed.
		if h.slicing && byLink(cluster) || !h.take(at, end, cluster+" backup") {
			return nil
		}
		return deed{{at, "backup " + cluster}, {end, "restore " + cluster}}
	}},
	{2, 0, func(h *history, at, _ time.Duration) deed { // a watch reports most of a cluster as deleted
		cluster, service := h.linked(), h.pick(simServices...)
		if !h.take(at, later, cluster+"/"+service, cluster+" backup", cluster+" guard") {
			return nil
		}
		slices := ""
		for n := range slicesOfService {
			slices += fmt.Sprintf(" shop/%s-%d", service, n)
		}
		return deed{
			{at, h.many(cluster, service)},
			{later, "misreport " + cluster + " EndpointSlice" + slices},
			{later + 20*time.Second, h.scale(cluster, service)},
		}
	}},
	{1, 0, func(h *history, at, _ time.Duration) deed { return deed{{at, "depose " + h.cluster()}} }},
	{1, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.cluster()
		if !h.take(at, end, cluster+" clock") {
			return nil
		}
		return deed{{at, "skew " + cluster + " " + h.pick("5m", "-5m", "20s")}, {end, "skew " + cluster + " 0s"}}
	}},
}

// scale draws new endpoints of a Service.
func (h *history) scale(cluster, service string) string {
	key := cluster + "/" + service
	h.have[key] = slices.DeleteFunc(h.have[key], func(int) bool { return h.random.IntN(3) == 0 })
	for range h.random.IntN(4) {
		h.next[key]++
		h.have[key] = append(h.have[key], h.next[key])
	}
	line := "endpoints " + cluster + " shop/" + service
	for _, n := range h.have[key] {
		line += fmt.Sprintf(" %d", n)
		if n%4 == 0 {
			line += "*"
		}
		if h.random.IntN(6) == 0 {
			line += "!"
		}
		if h.random.IntN(6) == 0 {
			line += "^"
		}
	}
	return line
}

// many gives a Service so many endpoints that a cluster loses most of what it has with them.
func (h *history) many(cluster, service string) string {
	key := cluster + "/" + service
	first := h.next[key] + 1
	h.next[key] += 40
	return fmt.Sprintf("endpoints %s shop/%s %d-%d", cluster, service, first, h.next[key])
}

// spoiling are credentials that do not work, while all replicas have those that do, and do not give them up.
var spoiling = deedKind{0, 0, func(h *history, at, to time.Duration) deed {
	cluster := h.linked()
	if !h.take(at, later, cluster+" link", "replicas", "links") {
		return nil
	}
	other := h.linked()
	how := []string{"", " without services", " without pods", " without " + sliceResource}
	if other != cluster {
		how = append(how, " as "+other)
	}
	return deed{
		{at, "spoil " + cluster + h.pick(how...)},
		{at + h.seconds(1, int((to-at)/time.Second)), "expire " + cluster},
		{later, "rotate " + cluster},
	}
}}

// absence is one that makes a cluster Stale.
var absence = deedKind{0, 0, func(h *history, at, to time.Duration) deed {
	cluster := h.linked()
	if !h.take(at, to, cluster+" network") {
		return nil
	}
	return deed{{at, "partition " + cluster + " " + h.pick("silence", "refuse")}, {to, "heal " + cluster}}
}}

// policyKinds are deeds with traffic policies.
var policyKinds = []deedKind{
	{10, 0, func(h *history, at, end time.Duration) deed {
		key := h.pick("prefer", "prefer", "weights", "capacity", "when-stale")
		of := "local Service shop/" + h.pick("all", "all", "web-federated") + " " + key
		return h.annotation(at, end, of, h.value(key), "")
	}},
	{10, 0, func(h *history, at, end time.Duration) deed {
		cluster, key := h.pick("east", "west"), h.pick("drain", "drain", "when-stale", "region", "max-endpoints")
		value := h.value(key)
		if key == "drain" {
			value = h.drain(at)
		}
		of := cluster + " " + key
		if _, drawn := h.bad[of]; !drawn {
			h.bad[of] = h.random.IntN(6) == 0
		}
		if h.bad[of] {
			value = h.pick("soon", "-1", "?")
		}
		return h.annotation(at, end, "local Link mc/"+cluster+" "+key, value, "")
	}},
	{3, 0, func(h *history, at, end time.Duration) deed { // it drains itself
		return h.annotation(at, end, h.linked()+" Namespace "+ours+" drain", h.drain(at), "")
	}},
	{2, 0, func(h *history, at, end time.Duration) deed {
		cluster := h.pick("east", "west")
		to := "local Link mc/" + cluster + " max-endpoints"
		if h.bad[cluster+" max-endpoints"] || !h.take(at, end, to) {
			return nil
		}
		to = "annotate " + to
		return deed{{at, fmt.Sprintf("%s=%d", to, 2+h.random.IntN(12))}, {end, to + "-"}}
	}},
	{6, 0, func(h *history, at, _ time.Duration) deed { // most of it goes, and is held for some time
		cluster, service, hold := h.pick("east", "east", "west"), h.pick(simServices...), 20+h.random.IntN(25)
		if !h.take(at, later, cluster+"/"+service, cluster+" backup", cluster+" guard") {
			return nil
		}
		to := "annotate local Link mc/" + cluster
		many := moment{at, h.many(cluster, service)}
		gone := moment{later, h.scale(cluster, service)}
		if h.random.IntN(3) > 0 {
			return deed{{at, fmt.Sprintf("%s withdrawal-guard=%d%%/%ds", to, 20+h.random.IntN(50), hold)}, many, gone}
		}
		h.news++ // until it is released
		return deed{
			{at, to + " withdrawal-guard=50%/1h"},
			many, gone,
			{
				later + h.seconds(1, 30),
				fmt.Sprintf("%s released-at=2000-01-01T%02d:%02d:00Z", to, h.news/60, h.news%60),
			},
			{later + 40*time.Second, to + " withdrawal-guard-"},
		}
	}},
}

// annotation sets an annotation of an object, and at the end, or in the next round, sets it to what it was, or removes
// it if that is empty.
func (h *history) annotation(at, end time.Duration, of, value, was string) deed {
	if h.random.IntN(2) == 0 {
		end = later
	}
	if !h.take(at, end, of) {
		return nil
	}
	d := deed{{at, fmt.Sprintf("annotate %s=%q", of, value)}, {end, "annotate " + of + "-"}}
	if was != "" {
		d[1].line = "annotate " + of + "=" + was
	}
	return d
}

// value draws a value of an annotation; on Services there may be some that cannot be read.
func (h *history) value(key string) string {
	switch key {
	case "prefer":
		return h.pick("local > *", "local > *", "east > local", "west,north > *", "local > region > *", "region > *",
			"local", "nowhere > east > *", "east", "local > > *", "east,east")
	case "weights":
		return h.pick("east=80,west=20", "local=1,east=3", "west=100", "nowhere=1", "north=1,south=2,east=3", "east=-1",
			"east=0", "80,20")
	case "capacity":
		return h.pick("4", "10", "100", "0", "many")
	case "when-stale":
		return h.pick("keep", "last", "drop", "drop")
	case "region":
		return h.pick(localRegion, "us")
	default: // max-endpoints
		return h.pick("0", "200", "100000")
	}
}

// drain draws a drain about a time.
func (h *history) drain(at time.Duration) string {
	if h.random.IntN(3) == 0 {
		return "true"
	}
	from := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(h.midnight + at + h.seconds(-60, 120))
	return from.Format(time.RFC3339) + h.pick("/0s", "/30s", "/2m", "/5m", "/10m", "/2m/up", "/5m/up")
}
