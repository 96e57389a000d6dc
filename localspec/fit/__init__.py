"""Make drafts on this machine: collect the target's answers, trim vocabularies, train drafts, judge them."""
