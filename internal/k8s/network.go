package k8s

// service gives the pods of an indexed Job their names: NAME-INDEX.NAME.
func (o Options) service() Object {
	return Object{
		{Name: "apiVersion", Value: "v1"},
		{Name: "kind", Value: "Service"},
		{Name: "metadata", Value: o.metadata()},
		{Name: "spec", Value: Object{
			{Name: "clusterIP", Value: "None"},
			{Name: "publishNotReadyAddresses", Value: true, Why: "ranks meet before their pods are ready"},
			{Name: "selector", Value: o.labels()},
			{Name: "ports", Value: list{Object{{Name: "name", Value: "rendezvous"}, {Name: "port", Value: int64(o.Port)}}}},
		}},
	}
}

// networkPolicy lets the job's pods reach each other, and the controller the port of ebb serve, which not even the
// pods reach. Nobody else reaches anything.
func (o Options) networkPolicy() Object {
	pods := Object{{Name: "podSelector", Value: Object{{Name: "matchLabels", Value: o.labels()}}}}
	ranks := Object{{Name: "from", Value: list{pods}}}
	rules := list{}
	if s := o.Serve; s != nil {
		ranks = ranks.with(Field{Name: "ports", Value: list{
			ports("TCP", 1, s.Port-1), ports("TCP", s.Port+1, 65535), ports("UDP", 1, 65535),
		}, Why: "all but that of ebb serve"})
		who := Object{{Name: "podSelector", Value: Object{{Name: "matchLabels", Value: object(s.Controller)}}}}
		if s.ControllerNamespace != "" {
			who = append(Object{{Name: "namespaceSelector", Value: Object{
				{Name: "matchLabels", Value: Object{{Name: "kubernetes.io/metadata.name", Value: s.ControllerNamespace}}},
			}}}, who...)
		}
		rules = append(rules, Object{
			{Name: "from", Value: list{who}, Why: "the controller, and nobody else, speaks to ebb serve"},
			{Name: "ports", Value: list{Object{{Name: "protocol", Value: "TCP"}, {Name: "port", Value: int64(s.Port)}}}},
		})
	}
	return Object{
		{Name: "apiVersion", Value: "networking.k8s.io/v1"},
		{Name: "kind", Value: "NetworkPolicy"},
		{Name: "metadata", Value: o.metadata()},
		{Name: "spec", Value: Object{
			{Name: "podSelector", Value: Object{{Name: "matchLabels", Value: o.labels()}}},
			{Name: "policyTypes", Value: texts("Ingress")},
			{Name: "ingress", Value: append(list{ranks}, rules...)},
		}},
	}
}

func ports(protocol string, first, last int) Object {
	return Object{{Name: "protocol", Value: protocol}, {Name: "port", Value: int64(first)}, {Name: "endPort", Value: int64(last)}}
}
