package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/inject"
	"github.com/fingerpost/fingerpost/internal/words"
)

// Bounds of what is read of a large cluster.
const (
	listPage  = 500
	maxListed = 40 * listPage   // Pods, or Namespaces
	maxOwners = 1000            // of Pods without a proxy that are distinguished
	maxAsked  = 20              // owners of whom one Pod is read
	maxSeen   = 10              // versions of proxies, or bundles of theirs, that are distinguished
	listsTake = 2 * time.Minute // for so many pages

	staticPodAnnotation = "kubernetes.io/config.mirror" // on Pods that a kubelet starts without an API server
)

// unknownVersion is that of proxies that no injector has noted.
const unknownVersion = "an unknown version"

// notEnded selects Pods that run, or are to.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

// meshChecks check the mesh whose control plane is in the namespace of this environment, if there is one.
func (e *environment) meshChecks(ctx context.Context, timeout time.Duration) []check {
	if e.silent {
		return nil
	}
	once, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	hooks, err := e.readWebhooks(once)

	checks := []check{
		certificatesLast.decided("the trust anchors and the issuer of the mesh last",
			func(ctx context.Context) error { return e.checkCertificates(ctx, false) }),
	}
	if err != nil && !apierrors.IsForbidden(err) {
		checks = append(checks, webhooksServed.decided("the webhooks of the mesh can be read",
			func(context.Context) error { return err }))
	}

	i := slices.IndexFunc(hooks, func(w meshWebhook) bool { return w.injects() })
	for _, w := range hooks {
		checks = append(checks, webhooksServed.retried("the webhook "+w.name+" is served", e.checkWebhook(w)))
	}
	var injector *meshWebhook
	if i >= 0 {
		injector = &hooks[i]
		checks = append(checks, podsInjected.retried("a Pod that asks for a proxy gets one",
			func(ctx context.Context) error { return e.checkInjection(ctx, injector) }))
	}

	known := err == nil
	left := podsInjected.decided("all Pods that ask for a proxy have one",
		func(ctx context.Context) error { return e.checkPods(ctx, injector, known) })
	current := proxiesCurrent.decided("proxies have the version and the anchors that new ones get", e.checkProxies)
	left.takes, current.takes = listsTake, listsTake
	return append(checks, left, current)
}

// matches reports whether a selector selects labels. One that cannot be read selects all, and the API server does not
// take it.
func matches(selector *metav1.LabelSelector, of map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err != nil || parsed.Matches(labels.Set(of))
}

// A lister lists the metadata of all objects of a kind, by pages.
type lister struct {
	resource string
	options  metav1.ListOptions
}

// each calls visit with the metadata of all objects, or of the first ones of very many: then more is true.
func (e *environment) each(ctx context.Context, of lister, visit func(*metav1.ObjectMeta)) (more bool, err error) {
	client, err := metadata.NewForConfig(e.config)
	if err != nil {
		return false, err
	}

	of.options.Limit = listPage

	for range maxListed / listPage {
		list, err := client.Resource(corev1.SchemeGroupVersion.WithResource(of.resource)).List(ctx, of.options)

		switch {
		case apierrors.IsForbidden(err):
			return false, skipped{"you may not list " + of.resource + " of all namespaces"}
		case apierrors.IsNotFound(err):
			return false, errSkipped
		case err != nil:
			return false, fmt.Errorf("list %s: %w", of.resource, err)
		}

		for i := range list.Items {
			visit(&list.Items[i].ObjectMeta)
		}
		if of.options.Continue = list.Continue; of.options.Continue == "" {
			return false, nil
		}
	}
	return true, nil
}

// notSeen is the last line of a report that does not have all Pods.
func notSeen(more bool) string {
	if !more {
		return ""
	}
	return fmt.Sprintf("there are more than %s Pods: the others were not looked at", words.Number(maxListed))
}

// A podOwner owns Pods without a proxy, for one reason.
type podOwner struct {
	kind, namespace, name string
	why                   string
}

// leftOut are Pods without a proxy that ask for one.
type leftOut struct {
	podOwner
	count  int
	one    string // name of one of them
	cannot bool   // have one, as their specs are
}

// checkPods reports Pods whose annotations ask for a proxy, or those of their Namespaces, and that have none: by owner,
// those first who have the most. injector is nil if none is registered; that is known unless webhooks may not be read.
func (e *environment) checkPods(ctx context.Context, injector *meshWebhook, known bool) error {
	namespaces := map[string]*metav1.ObjectMeta{}
	if _, err := e.each(ctx, lister{resource: "namespaces"}, func(meta *metav1.ObjectMeta) {
		namespaces[meta.Name] = meta
	}); err != nil {
		return err
	}

	found, disabled := leftOutPods{}, 0
	without := lister{"pods", metav1.ListOptions{
		LabelSelector: "!" + linkerd.ControlPlaneLabel + ",!" + linkerd.ComponentLabel, FieldSelector: notEnded,
	}}

	more, err := e.each(ctx, without, func(pod *metav1.ObjectMeta) {
		switch namespace := namespaces[pod.Namespace]; {
		case namespace == nil: // it is new
		case isDisabled(pod, namespace):
			disabled++
		default:
			found.add(pod, namespace, injector, known)
		}
	})
	if err != nil {
		return err
	}

	all := make([]*leftOut, 0, len(found))
	for _, of := range found {
		all = append(all, of)
	}
	sortLeftOut(all)

	for _, of := range all[:min(len(all), maxAsked)] {
		e.askSpec(ctx, of)
	}
	sortLeftOut(all)
	return leftOutReport(all, disabled, more)
}

// reasonOf returns why annotations leave a Pod without a proxy; empty if they ask for one.
func reasonOf(pod, namespace *metav1.ObjectMeta) inject.Reason {
	_, reason := inject.Decide(namespace.Annotations[inject.InjectAnnotation], pod.Annotations[inject.InjectAnnotation])
	return reason
}

func isDisabled(pod, namespace *metav1.ObjectMeta) bool {
	return reasonOf(pod, namespace) == inject.InjectDisabled
}

// leftOutPods are Pods without a proxy that ask for one, by owner and reason. Those of too many owners are one group.
type leftOutPods map[podOwner]*leftOut

// add adds a Pod without a proxy, if it asks for one.
func (l leftOutPods) add(pod, namespace *metav1.ObjectMeta, injector *meshWebhook, known bool) {
	reason := reasonOf(pod, namespace)
	if _, static := pod.Annotations[staticPodAnnotation]; static || reason == inject.InjectNotEnabled {
		return
	}

	key := ownerOfPod(pod)
	key.why = cmp.Or(reason.Words(), leftOutWhy(pod, namespace, injector, known))
	if l[key] == nil && len(l) >= maxOwners {
		key = podOwner{kind: "others", why: "see 'kubectl get pods -A -l !" + linkerd.ControlPlaneLabel + "'"}
	}
	if l[key] == nil {
		l[key] = &leftOut{podOwner: key, one: pod.Name}
	}
	l[key].count++
}

// sortLeftOut sorts those first that could have a proxy, and that are many.
func sortLeftOut(all []*leftOut) {
	slices.SortFunc(all, func(a, b *leftOut) int {
		rank := func(l *leftOut) int {
			if l.cannot {
				return 1
			}
			return 0
		}
		return cmp.Or(rank(a)-rank(b), b.count-a.count, strings.Compare(a.namespace, b.namespace),
			strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name), strings.Compare(a.why, b.why))
	})
}

// leftOutWhy returns why a Pod that asks for a proxy has none, as far as its metadata has it.
func leftOutWhy(pod, namespace *metav1.ObjectMeta, injector *meshWebhook, known bool) string {
	switch {
	case injector == nil && known:
		return "no webhook that adds proxies is registered"
	case injector == nil:
		return "restart it if the webhook that adds proxies is registered"
	case !matches(injector.asked, namespace.Labels):
		return "the webhook leaves out its Namespace (" + metav1.FormatLabelSelector(injector.asked) + ")"
	case !matches(injector.objects, pod.Labels):
		return "the webhook leaves out its labels (" + metav1.FormatLabelSelector(injector.objects) + ")"
	case pod.CreationTimestamp.Time.Before(injector.since):
		return "created before the webhook was registered: restart it"
	}
	return "created while the webhook did not answer, or before the annotation was there: restart it"
}

// ownerOfPod returns who owns a Pod: of a Pod of a Deployment's ReplicaSet the Deployment, by the name that it has
// given; of one without an owner itself.
func ownerOfPod(pod *metav1.ObjectMeta) podOwner {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return podOwner{kind: "Pod", namespace: pod.Namespace, name: pod.Name}
	}

	of := podOwner{kind: owner.Kind, namespace: pod.Namespace, name: owner.Name}
	if hash := pod.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if name, is := strings.CutSuffix(owner.Name, "-"+hash); is {
			of.kind, of.name = "Deployment", name
		}
	}
	return of
}

// askSpec looks in one Pod for why its owner's cannot have a proxy. Without an answer the reason stays as it is.
func (e *environment) askSpec(ctx context.Context, of *leftOut) {
	pod, err := e.client.CoreV1().Pods(of.namespace).Get(ctx, of.one, metav1.GetOptions{})
	if err != nil {
		return
	}

	workload := &inject.Workload{Namespace: pod.Namespace, Meta: &pod.ObjectMeta, Spec: &pod.Spec}
	reasons := inject.Defaults("").Reasons(workload)
	var texts []string
	for _, reason := range reasons {
		texts = append(texts, reason.Words())
	}
	if of.cannot = len(texts) > 0; of.cannot {
		of.why = strings.Join(texts, ", ")
	}
}

// leftOutReport returns what is to be reported. That Pods cannot have a proxy is how they were made, and no warning.
func leftOutReport(all []*leftOut, disabled int, more bool) error {
	var lines, made []string
	missing, cannot := 0, 0

	for _, of := range all {
		line := fmt.Sprintf("%s %s/%s: %s: %s", of.kind, of.namespace, of.name, words.Count(of.count, "Pod"), of.why)
		if of.cannot {
			cannot += of.count
			made = append(made, line)
			continue
		}

		missing += of.count
		lines = append(lines, line)
	}

	var notes []string
	if disabled > 0 {
		notes = append(notes, words.Count(disabled, "Pod")+" of Namespaces that ask for proxies "+words.Are(disabled)+
			" marked "+inject.InjectAnnotation+": disabled")
	}
	if last := notSeen(more); last != "" {
		notes = append(notes, last)
	}

	if missing == 0 {
		if cannot > 0 {
			notes = append(notes, words.Count(cannot, "Pod")+" cannot have one, such as "+made[0])
		}
		return detailIf(strings.Join(notes, "; "))
	}

	title := fmt.Sprintf("%s without a proxy, of %s:",
		words.Count(missing, "Pod"), words.Count(len(lines), "owner"))
	shown := slices.Concat([]string{title}, firstOf(slices.Concat(lines, made)), notes)
	return permanentWarningf("%s", strings.Join(shown, "\n"))
}

// detailIf returns a detail, or nil if there is none.
func detailIf(text string) error {
	if text == "" {
		return nil
	}
	return detail(text)
}

// A sample is a group of Pods of which one is known.
type sample struct {
	text  string // that all of them have
	count int
	one   types.NamespacedName
}

// samples are groups of Pods, of which so many are distinguished, and the others are one.
type samples struct{ all []*sample }

func (s *samples) add(text string, pod *metav1.ObjectMeta) {
	text = text[:min(len(text), 100)]
	i := slices.IndexFunc(s.all, func(one *sample) bool { return one.text == text })
	if i < 0 && len(s.all) > maxSeen {
		i = maxSeen
	}
	if i < 0 {
		i = len(s.all)
		one := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		s.all = append(s.all, &sample{text: text, one: one})
	}
	s.all[i].count++
}

// String returns how many Pods each group has, the greatest first.
func (s *samples) String() string {
	slices.SortFunc(s.all, func(a, b *sample) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.text, b.text))
	})
	var counts []string
	for _, v := range s.all {
		counts = append(counts, fmt.Sprintf("%s of %s", words.Number(v.count), v.text))
	}
	return words.Some(counts, 5)
}

// checkProxies compares the proxies of the mesh with what new ones get: their version, and their trust anchors, as
// injectors have noted both on Pods.
func (e *environment) checkProxies(ctx context.Context) error {
	var versions, bundles samples
	total := 0
	more, err := e.each(ctx, lister{"pods", metav1.ListOptions{
		LabelSelector: linkerd.ControlPlaneLabel + "=" + e.namespace, FieldSelector: notEnded,
	}}, func(pod *metav1.ObjectMeta) {
		total++
		versions.add(cmp.Or(pod.Annotations[inject.VersionAnnotation], unknownVersion), pod)
		bundles.add(pod.Annotations[inject.AnchorsAnnotation], pod)
	})
	if err != nil || total == 0 {
		return cmp.Or(err, errSkipped)
	}

	summary := words.Count(total, "Pod") + " with proxies: " + versions.String()
	if last := notSeen(more); last != "" {
		summary += "; " + last
	}
	lines, fatal := e.otherAnchors(ctx, bundles.all)
	if line := e.otherVersions(ctx, versions.all); line != "" {
		lines = append(lines, line)
	}

	text := strings.Join(append([]string{summary}, lines...), "\n")
	switch {
	case fatal:
		return permanentErrorf("%s", text)
	case len(lines) > 0:
		return permanentWarningf("%s", text)
	}
	return detail(summary)
}

// otherVersions returns how many proxies do not have the version that new ones get; empty if none, or if that is not
// known.
func (e *environment) otherVersions(ctx context.Context, all []*sample) string {
	found, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	values, err := inject.ParseValues([]byte(found.Data[linkerd.ConfigValuesKey]))
	if err != nil {
		return "" // what new Pods get is not known
	}

	others := 0
	for _, v := range all {
		if v.text != values.Tag() && v.text != unknownVersion {
			others += v.count
		}
	}
	if others == 0 {
		return ""
	}
	return fmt.Sprintf("%s not of %s, which new Pods get: restart them, or name it by their annotation",
		words.Number(others)+" "+words.Are(others), values.Tag())
}

// otherAnchors returns how the anchors of proxies differ from those of the mesh, and whether some have none of them.
// Proxies whose note differs from the bundle are distinguished by it, and one Pod of each is read.
func (e *environment) otherAnchors(ctx context.Context, all []*sample) (lines []string, fatal bool) {
	found, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(ctx, linkerd.AnchorsName, metav1.GetOptions{})
	if err != nil {
		return nil, false
	}
	bundle, err := linkerd.ParseAnchors(found.Data[linkerd.AnchorsKey])
	if err != nil {
		return nil, false // which another check reports
	}

	for _, group := range all {
		theirs := e.anchorsOf(ctx, group.one)
		if len(theirs) == 0 {
			continue // it reads the ConfigMap, or does not start
		}

		shared := 0
		for _, anchor := range theirs {
			if slices.Contains(bundle, anchor) {
				shared++
			}
		}

		who := fmt.Sprintf("%s, such as %s", words.Count(group.count, "Pod"), group.one)
		switch {
		case shared == 0:
			fatal = true
			lines = append(lines, who+", trust none of the mesh's anchors, so that mTLS fails: restart them")
		case shared < len(bundle):
			lines = append(lines, who+", do not trust all of the mesh's anchors yet: restart them before an issuer of "+
				"the others is in use")
		case shared < len(theirs):
			lines = append(lines, who+", trust an anchor that the mesh does not have any more: restart them")
		}
	}
	return lines, fatal
}

// anchorsOf returns the anchors in the Pod of a proxy; none if they cannot be read there.
func (e *environment) anchorsOf(ctx context.Context, of types.NamespacedName) []linkerd.Anchor {
	pod, err := e.client.CoreV1().Pods(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	text, _ := cli.AnchorsOfProxy(pod)
	anchors, _ := linkerd.ParseAnchors(text)
	return anchors
}
