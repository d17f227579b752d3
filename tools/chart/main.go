// Command chart prints what a chart renders to, as `helm template` does, in the order in which helm applies
// it. It is a module of its own, so that helm's dependencies stay in it. With -questions it prints what the
// chart's dashboards and alerts need of the server.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	helmchart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

func main() {
	var r release
	flag.StringVar(&r.name, "name", "fingerpost", "name of the release")
	flag.StringVar(&r.namespace, "namespace", "fingerpost", "namespace of the release")
	flag.Func("values", "file of values, which win over those of the chart and of earlier files; again for more",
		func(file string) error {
			r.values = append(r.values, file)
			return nil
		})
	flag.StringVar(&r.set, "set", "", "more values, as YAML, which win over all files")
	flag.BoolVar(&r.hooks, "hooks", false, "print hooks as well, those of helm test")
	asks := flag.Bool("questions", false,
		"print which metrics the chart's dashboards and alerts ask for, and which labels of them, instead of rendering it")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: chart [flags] DIRECTORY")
		os.Exit(2)
	}
	var text string
	var err error
	if *asks {
		text, err = questionLines(flag.Arg(0))
	} else {
		text, _, err = r.render(flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
	fmt.Fprint(os.Stdout, text)
}

// A release is what a chart is rendered for.
type release struct {
	name, namespace string
	values          []string // files, the last one wins
	set             string   // YAML, wins over them
	hooks           bool     // the manifests have those of hooks as well

	cluster engine.ClientProvider // what templates look up; nil for nothing
}

// render returns the manifests, and the notes for the user. Values that the chart's schema refuses are an error.
func (r release) render(dir string) (manifests, notes string, err error) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return "", "", fmt.Errorf("load chart %s: %w", dir, err)
	}
	values, err := r.merged()
	if err != nil {
		return "", "", err
	}
	if err := chartutil.ProcessDependencies(chart, values); err != nil {
		return "", "", err
	}
	options := common.ReleaseOptions{Name: r.name, Namespace: r.namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, nil)
	if err != nil {
		return "", "", err
	}
	render := engine.Render
	if r.cluster != nil { // once: templates keep what they have made among the values
		render = func(chart helmchart.Charter, values common.Values) (map[string]string, error) {
			return engine.RenderWithClientProvider(chart, values, r.cluster)
		}
	}
	files, err := render(chart, all)
	if err != nil {
		return "", "", err
	}
	for path, text := range files {
		if strings.HasSuffix(path, "/NOTES.txt") {
			notes = text
			delete(files, path)
		}
	}
	hooks, sorted, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	for _, m := range sorted {
		fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", m.Name, strings.TrimSpace(m.Content))
	}
	for _, h := range hooks {
		if r.hooks {
			fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", h.Path, strings.TrimSpace(h.Manifest))
		}
	}
	return b.String(), notes, nil
}

func (r release) merged() (map[string]any, error) {
	values := map[string]any{}
	for _, file := range r.values {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		next, err := loader.LoadValues(strings.NewReader(string(text)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		values = loader.MergeMaps(values, next)
	}
	var set map[string]any
	if err := yaml.Unmarshal([]byte(r.set), &set); err != nil {
		return nil, fmt.Errorf("-set: %w", err)
	}
	return loader.MergeMaps(values, set), nil
}
