// Command kube holds every program of a Kubernetes control plane in one
// file: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
// and kwok, which plays the kubelets. It is run through symlinks: the name it
// is called by decides which program it is.
//
// One file, because the programs share most of their code: it is linked and
// stored once, and its pages are in memory once however many control planes
// run. It is a module of its own, because k8s.io/kubernetes pins every other
// k8s.io module and those versions must not become Fingerpost's.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	programs := map[string]func(){
		"etcd":                    etcd,
		"kube-apiserver":          apiServer,
		"kube-controller-manager": controllerManager,
		"kube-scheduler":          scheduler,
		"kubectl":                 kubectl,
		"kwok":                    kwok,
	}
	name := filepath.Base(os.Args[0])
	run, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: called as %q, which is none of its programs: "+
			"make a symlink to it named etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl or kwok\n", name)
		os.Exit(2)
	}
	if err := dieWithParent(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(2)
	}
	run()
}
