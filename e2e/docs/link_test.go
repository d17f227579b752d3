package docs

import (
	"testing"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

// shop is what docs/link-two-clusters.md takes for granted in each cluster.
const shop = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: web, image: web, ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 8080}]
`

// Two clusters are linked; a federated Service has the Pods of both, also while one is cut off, and those of one once
// it is unlinked.
func TestLinkTwoClusters(t *testing.T) {
	inBothWorlds(t, []string{"east", "west"}, func(w *world) {
		w.withMulticluster()
		w.applyAll(shop)
		members := func(ofEast, ofWest int) {
			w.t.Helper()
			w.addresses("east", "web-federated", map[string]int{"east": ofEast, "west": ofWest})
		}
		west := w.clusters["west"]
		w.play(link, map[string]func(){
			"2. Link both ways": func() {
				w.eventually("fingerpost check --context east -n fingerpost")
				w.eventually("kubectl --context west -n fingerpost wait link/east --for=condition=Synced --timeout=1s")
			},
			"3. A federated Service": func() {
				w.eventually("kubectl --context west -n shop get service web-federated")
				members(2, 2)
			},
			"4. Watch it": func() {
				w.printsTimes("+", 7)
				members(2, 5)
			},
			"5. Cut a cluster off": func() {
				w.must(west.Pause(controlplane.APIServer))
				w.eventually("fingerpost clusters --context east -n fingerpost", "Suspect")
				w.run("kubectl --context east -n fingerpost wait link/west --for=condition=Connected=False --timeout=30s")
				members(2, 5)
				w.must(west.Continue(controlplane.APIServer))
				w.eventually("fingerpost clusters --context east -n fingerpost", "All 2 clusters are Live.")
			},
			"6. Unlink": func() {
				members(2, 0)
			},
		})
	})
}
