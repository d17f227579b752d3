package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"strings"
)

// A component is one of a bill of materials, as CycloneDX 1.6 has it.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

func goComponent(kind, name, version string) component {
	purl := "pkg:golang/" + name + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: name, Version: version, PURL: purl}
}

// sbom returns what a binary consists of, as the linker has written it into the binary: Go, and each module.
func sbom(binary []byte, version string) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("what the binary is made of: %w", err)
	}
	main := goComponent("application", info.Main.Path, "v"+version)
	components := []component{goComponent("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		for module.Replace != nil {
			module = module.Replace
		}
		components = append(components, goComponent("library", module.Path, module.Version))
	}
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.Ref
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema":      "http://cyclonedx.org/schema/bom-1.6.schema.json",
		"bomFormat":    "CycloneDX",
		"specVersion":  "1.6",
		"version":      1,
		"metadata":     map[string]any{"component": main},
		"components":   components,
		"dependencies": []map[string]any{{"ref": main.Ref, "dependsOn": refs}},
	}, "", "  ")
	return append(text, '\n'), err
}
