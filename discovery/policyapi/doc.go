// Package policyapi serves Linkerd's Policy API: how a client reaches a target (OutboundPolicies), and what comes in at
// a port of a workload (InboundServerPolicies).
//
// An answer is computed by federation/rules and encoded here, once for all who ask the same. Encoding decides nothing:
// each part of an answer has one form in a message. What it keeps true is that a proxy takes every message: each
// backend has a queue and metadata, each filter a kind, each set of retries its conditions, and no timeout is zero.
//
//	rules.Outbound --> encode --> bytes of an OutboundPolicy
package policyapi
