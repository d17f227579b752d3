// Package manifests adds proxies to manifests, and removes them: documents of YAML or JSON go in, and the same
// documents come out, with the operations of package inject applied.
//
//	text --Reader--> Document --Injection.Inject, Uninject--> Document, Reports --YAML, JSON--> text
//
// A Document is a tree of nodes, and what it means is decoded from it whenever it is asked for. So nothing is lost that
// no type here knows: neither fields, nor their order, nor comments. What is not changed is written as it was read.
// What a text means is what kubectl takes it for, which is YAML 1.1.
//
// Texts are hostile. A Reader bounds the bytes of a document, and its nodes after all aliases are replaced by what they
// stand for; its bounds are constants of reader.go.
package manifests
